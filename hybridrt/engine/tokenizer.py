"""Text to token ids and back, and chats to text, from a model folder's own files.

`tokenizer.json` holds the whole tokenizer, the tokens put around a prompt
included: `add_bos_token` and its like in `tokenizer_config.json` are leftovers
of older formats, and transformers ignores them beside a `tokenizer.json` too.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from hybridrt.engine.chat_template import ChatTemplate
from hybridrt.engine.checkpoint import read_json_object, read_text

_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """A model's tokenizer.

    Attributes:
        special_tokens: the tokens that `tokenizer_config.json` names, by their role
            (`bos_token`, `eos_token`, ...).
        is_byte_level: every token is a string of bytes, and a text is those bytes as
            UTF-8, with U+FFFD for what is not UTF-8.
        has_byte_fallback: characters outside the vocabulary are written with tokens
            `<0x00>` to `<0xFF>`, one a byte.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, Any] | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        # What a file says of training (cut at 512, pad to 512) is not meant for a prompt.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._chat_template = chat_template
        self.special_tokens = _special_tokens(config or {})
        self._special_ids = frozenset(
            id for id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        decoders = _decoder_types(backend)
        self.is_byte_level = "ByteLevel" in decoders
        self.has_byte_fallback = "ByteFallback" in decoders
        self._texts: dict[int, str] = {}
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_directory(cls, path: Path) -> "Tokenizer | None":
        """The tokenizer in a model folder, None if it has no `tokenizer.json`.

        Raises:
            ValueError: a tokenizer file is malformed.
        """
        file = path / _TOKENIZER
        if not file.is_file():
            return None
        try:
            backend = tokenizers.Tokenizer.from_str(read_text(file))
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(f"{file}: not a tokenizer: {error}") from error
        config_file = path / _CONFIG
        config = read_json_object(config_file) if config_file.is_file() else {}
        return cls(backend, config, ChatTemplate.from_directory(path, config))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def bos_token_id(self) -> int | None:
        """The id of `tokenizer_config.json`'s `bos_token`, if it has one."""
        return self._role_id("bos_token")

    @cached_property
    def eos_token_id(self) -> int | None:
        """The id of `tokenizer_config.json`'s `eos_token`, if it has one."""
        return self._role_id("eos_token")

    def _role_id(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self._backend.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text, within the tokens that the model wants around a prompt if asked.

        Raises:
            ValueError: the text is not Unicode (it holds half of a surrogate pair).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text={text[:80]!r}: not valid Unicode: {error.reason}") from error
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids. Ids outside the vocabulary have none."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def is_visible(self, id: int, skip_special_tokens: bool) -> bool:
        """Whether `decode` takes any notice of a token."""
        if skip_special_tokens and id in self._special_ids:
            return False
        return self._backend.id_to_token(id) is not None

    def token_text(self, id: int) -> str:
        """One token's text as it reads inside a text, leading space and all.

        Bytes that are only part of a character read as U+FFFD.
        """
        if id not in self._texts:
            # Decoders treat the first token apart, so look at the second of two.
            once, twice = (self.decode([id] * n, skip_special_tokens=False) for n in (1, 2))
            self._texts[id] = once if self.is_byte_level else twice[len(once) :]
        return self._texts[id]

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token of a byte-level tokenizer stands for."""
        if id not in self._bytes:
            token = self._backend.id_to_token(id) or ""
            try:
                self._bytes[id] = bytes(_BYTE_OF_CHARACTER[character] for character in token)
            except KeyError:  # an added token, which is plain text
                self._bytes[id] = token.encode()
        return self._bytes[id]

    def fallback_byte(self, id: int) -> int | None:
        """The byte that a byte-fallback token stands for, None for any other token."""
        match = _BYTE_TOKEN.fullmatch(self._backend.id_to_token(id) or "")
        return int(match[1], 16) if match and self.has_byte_fallback else None

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """A chat as the text that the model was trained on.

        Encode it with `add_special_tokens=False`: a template writes them itself.

        Args:
            messages: `{"role": ..., "content": ...}` and whatever else the template reads.
            add_generation_prompt: end with the opening of the assistant's turn.
            kwargs: further variables of the template, such as `tools`.

        Raises:
            ValueError: the model has no template, or the template refuses the messages.
        """
        if self._chat_template is None:
            raise ValueError(
                "this model has no chat template; put one into chat_template.jinja in its folder, "
                "or give a prompt that is already text"
            )
        variables = {
            **self.special_tokens,
            **kwargs,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._chat_template.render(messages, variables)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The tokens of `tokenizer_config.json` by role; each is text or `{"content": text}`."""
    named = {role: token for role, token in config.items() if role.endswith("_token")}
    texts = {
        role: token.get("content") if isinstance(token, dict) else token
        for role, token in named.items()
    }
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _decoder_types(backend: tokenizers.Tokenizer) -> set[str]:
    """The names of the steps by which a tokenizer makes text of tokens."""
    if backend.decoder is None:
        return set()
    decoder = json.loads(backend.decoder.__getstate__())
    return {step["type"] for step in decoder.get("decoders", [decoder])}


def _characters_of_bytes() -> dict[str, int]:
    """Which byte a character of a byte-level vocabulary spells.

    Printable Latin-1 characters spell their own code; the other bytes are
    spelled, in order, by the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _characters_of_bytes()
