"""Text of one output, token by token.

A token is not a text: a character may be spread over several tokens, and a stop
string may begin in one token and end in another. So text has three parts:

    |  shown          |  could begin a stop string  |  not yet a text       |
    |  streamable_text                              |                       |
    |  text                                         |  bytes of a character |

What was shown never changes, the pieces together are the text that decoding the
whole output at once gives, and a token costs the same wherever it comes.
"""

import codecs
import io
from collections.abc import Sequence
from typing import Protocol

from hybridrt.engine.tokenizer import Tokenizer
from hybridrt.request import SamplingParams

_LONGEST_RUN = 32  # bytes


class Detokenizer:
    """The text of one output as it grows.

    The text follows on the prompt: a leading space stays where the tokenizer
    drops it only at the start of a text. Without a tokenizer the text is empty.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        if tokenizer is None and params.stop:
            raise ValueError(
                f"stop={params.stop!r}: this model has no tokenizer, so it has no text"
            )
        self._has_text = tokenizer is not None
        self._decoder = _incremental_decoder(tokenizer, prompt_token_ids, params)
        self._stop = _StopFinder(params.stop)
        self._text = io.StringIO(newline="\n")  # appending does not copy what is there
        self._num_shown = 0
        self._num_streamed = 0
        self._finished = False

    @property
    def text(self) -> str:
        """All text that is final, up to the stop string if one was found."""
        return self._text.getvalue()

    @property
    def streamable_text(self) -> str:
        """The part of `text` that can be shown: it never changes, whatever comes."""
        return self.text[: self._num_shown]

    def take_new_text(self) -> str:
        """What `streamable_text` has gained since the last call."""
        self._text.seek(self._num_streamed)
        new = self._text.read(self._num_shown - self._num_streamed)
        self._num_streamed = self._num_shown
        return new

    def append(self, token_ids: Sequence[int], check_stop: bool = True) -> str | None:
        """Takes the next tokens; returns the stop string that they complete, if any.

        Of several stop strings the one that is complete first counts, and of those
        the longest. With `check_stop=False` none is looked for in these tokens, though
        one that begins in them may be found later.
        """
        assert not self._finished, "a finished output takes no more tokens"
        if not self._has_text:
            return None
        new = "".join(self._decoder.push(id) for id in token_ids)
        pending = self._decoder.complete_pending() if self._stop.strings else ""
        found = self._stop.feed(new, pending, check_stop)
        length = self._write(new)
        if found is None:
            self._num_shown = length - self._stop.num_held
            return None
        stop, num_surplus = found
        self._text.truncate(self._write(pending) - num_surplus)
        self._end()
        return stop

    def finish(self) -> None:
        """Makes all text final: no more tokens come, so nothing is held back."""
        if not self._finished:
            self._write(self._decoder.flush())
            self._end()

    def _write(self, piece: str) -> int:
        """Appends to the text; returns its length."""
        self._text.seek(0, io.SEEK_END)
        self._text.write(piece)
        return self._text.tell()

    def _end(self) -> None:
        self._finished = True
        self._num_shown = self._text.seek(0, io.SEEK_END)


class _StopFinder:
    """Looks for stop strings in a text that comes in pieces.

    It keeps no more of the text than a stop string could reach back to.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(strings)
        self.num_held = 0  # characters at the end that could begin a stop string
        self._reach = max(map(len, strings), default=1) - 1
        self._tail = ""
        self._num_seen_pending = 0

    def feed(self, new: str, pending: str, check: bool) -> tuple[str, int] | None:
        """Takes final text, and what would follow it if no token came any more.

        Returns the stop string that is complete first, and the number of characters
        from its beginning to the end of the text, `pending` included.
        """
        final = self._tail + new
        text = final + pending
        num_seen = len(self._tail) + self._num_seen_pending
        found = self._first(text, num_seen) if check else None
        if found is not None:
            start, stop = found
            return stop, len(text) - start
        self._num_seen_pending = len(pending)
        self._tail = final[max(len(final) - self._reach, 0) :]
        self.num_held = self._count_held()
        return None

    def _first(self, text: str, num_seen: int) -> tuple[int, str] | None:
        """Where the first stop string that ends behind `num_seen` starts, and which it is."""
        starts = [
            (text.find(stop, max(num_seen - len(stop) + 1, 0)), stop) for stop in self.strings
        ]
        ends = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        return min(ends)[1:] if ends else None

    def _count_held(self) -> int:
        for start in range(len(self._tail)):
            end = self._tail[start:]
            if any(stop.startswith(end) and stop != end for stop in self.strings):
                return len(end)
        return 0


class _IncrementalDecoder(Protocol):
    """Tokens in, text out, where no text is given before it is certain."""

    def push(self, id: int) -> str:
        """The text that this token makes certain."""
        ...

    def complete_pending(self) -> str:
        """What `flush` would give, if that is whole characters, else nothing."""
        ...

    def flush(self) -> str:
        """The rest, now that no token follows."""
        ...


def _incremental_decoder(
    tokenizer: Tokenizer | None, prompt_token_ids: Sequence[int], params: SamplingParams
) -> _IncrementalDecoder:
    if tokenizer is None:
        return _NoText()
    if tokenizer.is_byte_level:
        return _ByteLevel(tokenizer, params.skip_special_tokens)
    return _Pieces(tokenizer, prompt_token_ids, params.skip_special_tokens)


class _NoText:
    """For a model without a tokenizer."""

    def push(self, id: int) -> str:
        return ""

    def complete_pending(self) -> str:
        return ""

    def flush(self) -> str:
        return ""


class _ByteLevel:
    """Tokens are bytes; a character waits for its last byte."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        if not self._tokenizer.is_visible(id, self._skip_special_tokens):
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(id))

    def complete_pending(self) -> str:
        return ""

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Pieces:
    """Tokens are pieces of text, with or without byte tokens for rare characters.

    A piece's text can depend on whether it is the first, so it is decoded behind
    one token before it. Byte tokens in a row are one run, and a byte that is not
    UTF-8 makes U+FFFD of every byte of its run: so a run waits for its end, at
    most until `_LONGEST_RUN` good bytes, where a new run begins.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        pieces = (
            id
            for id in reversed(prompt_token_ids)
            if tokenizer.is_visible(id, skip_special_tokens) and tokenizer.fallback_byte(id) is None
        )
        self._context = [id for id in [next(pieces, None)] if id is not None]
        self._begin_run()

    def _begin_run(self) -> None:
        self._run: list[int] = []
        self._run_is_valid = True
        self._utf8 = codecs.getincrementaldecoder("utf-8")("strict")

    def push(self, id: int) -> str:
        if not self._tokenizer.is_visible(id, self._skip_special_tokens):
            return ""
        byte = self._tokenizer.fallback_byte(id)
        self._run.append(id)
        if byte is None:
            return self._end_run(context=[id])
        self._check(byte)
        if len(self._run) >= _LONGEST_RUN and self._is_complete():
            return self._end_run(context=self._context)
        return ""

    def _check(self, byte: int) -> None:
        try:
            self._utf8.decode(bytes([byte]))
        except UnicodeDecodeError:
            self._run_is_valid = False

    def _is_complete(self) -> bool:
        return self._run_is_valid and not self._utf8.getstate()[0]

    def _end_run(self, context: list[int]) -> str:
        text = self._decode_run()
        self._context = context
        self._begin_run()
        return text

    def _decode_run(self) -> str:
        before = self._tokenizer.decode(self._context, self._skip_special_tokens)
        both = self._tokenizer.decode(self._context + self._run, self._skip_special_tokens)
        return both[len(before) :]

    def complete_pending(self) -> str:
        return self._decode_run() if self._run and self._is_complete() else ""

    def flush(self) -> str:
        return self._end_run(context=self._context)
