"""The forms in which a prompt may be given, brought into one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`; a dict may have a
`cache_salt` too, and both text and ids, of which the ids count."""

_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """One prompt: its text, its token ids, or both."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    cache_salt: str | None = None


def as_list(prompts: Any) -> list[Any]:
    """One prompt, or several, as a list of them."""
    if isinstance(prompts, str | Mapping) or not _is_listed(prompts):
        return [prompts]
    items = _items(prompts)
    if hasattr(prompts, "tolist") and not (items and isinstance(items[0], list)):
        return [items]
    return [items] if items and isinstance(items[0], Integral) else items


def parse(prompt: Any) -> ParsedPrompt:
    """One prompt, checked.

    Raises:
        ValueError: it has none of the forms of `Prompt`.
    """
    if isinstance(prompt, str):
        return ParsedPrompt(text=prompt)
    if _is_listed(prompt):
        return ParsedPrompt(token_ids=_token_ids(prompt))
    if not isinstance(prompt, Mapping):
        raise ValueError(f"prompt={prompt!r} should be text, a list of token ids or a dict")
    unknown = [key for key in prompt if key not in _KEYS]
    if unknown or not any(key in prompt for key in _KEYS[:2]):
        raise ValueError(
            f"prompt has the keys {list(prompt)}; it should have 'prompt' or "
            f"'prompt_token_ids', and may have 'cache_salt'"
        )
    ids = prompt.get("prompt_token_ids")
    return ParsedPrompt(
        text=_text(prompt, "prompt", needed="prompt_token_ids" not in prompt),
        token_ids=_token_ids(ids) if "prompt_token_ids" in prompt else None,
        cache_salt=_text(prompt, "cache_salt", needed=False),
    )


def _is_listed(value: Any) -> bool:
    """Whether it is a sequence of things: a list, a tuple, a range, an array or a tensor."""
    if isinstance(value, str | bytes):
        return False
    return isinstance(value, Sequence) or hasattr(value, "tolist")


def _items(value: Any) -> list[Any]:
    items = value.tolist() if hasattr(value, "tolist") else list(value)
    return items if isinstance(items, list) else [items]


def _token_ids(value: Any) -> tuple[int, ...]:
    if not (_is_listed(value) or isinstance(value, str)):
        raise ValueError(f"prompt_token_ids={value!r} should be a list of integers")
    items = _items(value)
    if {*map(type, items)} <= {int}:  # the usual case, at a hundredth of the time
        return tuple(items)
    wrong = [item for item in items if not isinstance(item, Integral) or isinstance(item, bool)]
    if wrong:
        raise ValueError(f"prompt_token_ids has {wrong[0]!r}; token ids should be integers")
    return tuple(int(item) for item in items)


def _text(prompt: Mapping[str, Any], key: str, *, needed: bool) -> str | None:
    value = prompt.get(key)
    if isinstance(value, str) or (value is None and not needed):
        return value
    raise ValueError(f"{key}={value!r} should be text")
