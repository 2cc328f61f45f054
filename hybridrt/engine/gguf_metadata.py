"""The metadata of a GGUF file, key by key: what nobody asks for is refused."""

from typing import Any

from hybridrt.engine.gguf_file import GgufFile

_REQUIRED: Any = object()


class Metadata:
    """The keys of a file's architecture, without its name before them."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.architecture = file.metadata.get("general.architecture")
        start = f"{self.architecture}."
        self._left = {
            key.removeprefix(start): _shortest(value)
            for key, value in file.metadata.items()
            if key.startswith(start)
        }

    def take(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value of `key`, which counts as known from now on.

        Raises:
            ValueError: there is none, and no default.
        """
        if default is _REQUIRED and key not in self._left:
            raise self.wrong(key, "missing")
        return self._left.pop(key, default)

    def peek(self, key: str) -> Any:
        """The value of `key`, which somebody else takes.

        Raises:
            ValueError: there is none.
        """
        if key not in self._left:
            raise self.wrong(key, "missing")
        return self._left[key]

    def expect(self, key: str, *right: Any) -> None:
        """Refuses a `key` that has another value; it may be left out."""
        value = self.take(key, right[0])
        if value not in right:
            raise self.wrong(key, f"{value!r}, should be {' or '.join(map(repr, right))}")

    def refuse_rest(self) -> None:
        """Refuses keys that were not taken."""
        if self._left:
            rest = ", ".join(f"{key}={value!r}" for key, value in sorted(self._left.items()))
            raise ValueError(
                f"{self.file.path}: the metadata of {self.architecture!r} has {rest}, which "
                "hybridrt does not know and which may change the result"
            )

    def wrong(self, key: str, what: str) -> ValueError:
        """The error of a value that can't be."""
        return ValueError(f"{self.file.path}: {self.architecture}.{key} is {what}")

    def has(self, tensor: str) -> bool:
        """Whether the file has a tensor of that name."""
        return tensor in self.file.tensors

    def by_layer(self, key: str, count: int) -> list[Any]:
        """One value for each layer, where there may be one for all."""
        value = self.take(key)
        values = value if isinstance(value, list) else [value] * count
        if len(values) != count:
            raise self.wrong(key, f"{value!r}, should have {count} entries")
        return values

    def special_tokens(self) -> dict[str, int]:
        """The tokens that begin and end a text, as `config.json` names them."""
        keys = {name: f"tokenizer.ggml.{name}" for name in ("bos_token_id", "eos_token_id")}
        found = self.file.metadata
        return {name: int(found[key]) for name, key in keys.items() if key in found}


def _shortest(value: Any) -> Any:
    """A float32 as the decimal that it was rounded from."""
    if isinstance(value, list):
        return [_shortest(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value
