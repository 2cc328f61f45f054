"""GGUF files: their metadata and tensors, read and decoded by the package `gguf`.

One file holds a whole model. Its tensors have names, orders of rows and signs of their own;
`hybridrt.engine.gguf_models` says what they are in a checkpoint of the same model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hybridrt.engine.checkpoint import StoredTensor
from hybridrt.engine.sources import DTYPES, EncodedTensor, map_bytes

QUANTISED = ("Q8_0", "Q4_K", "Q6_K")
"""The types of blocks that are decoded; `F32`, `F16` and `BF16` are taken as they are."""

_DECODED_AT_ONCE = 2**20  # elements
_TEXT = "tokenizer."  # long lists that nothing here reads
_ALSO_READ = ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a file says of itself: metadata by key, tensors by the file's own names."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def gguf_file(path: Path) -> Path | None:
    """The GGUF file that `path` means: itself, or the only one in a folder with no other weights.

    Raises:
        ValueError: the folder holds several, or a file is of another kind.
    """
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(f"{path}: should be a folder with config.json, or a .gguf file")
        return path
    if (path / "config.json").is_file() or any(path.glob("*.safetensors")):
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"{path}: holds {len(found)} GGUF files ({names}); name the one to load")
    return found[0] if found else None


def read_gguf(path: Path) -> GgufFile:
    """The file's metadata and where its tensors are; no weight is read.

    Raises:
        ValueError: the file is truncated, corrupt or one of several parts.
        ImportError: the package `gguf` isn't installed.
    """
    status = path.stat()
    return _read(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)
def _read(path: Path, changed: int, size: int) -> GgufFile:
    try:
        from gguf import GGUFReader  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            f"{path}: GGUF files are read by the package gguf: pip install 'hybridrt[gguf]'"
        ) from error
    try:
        reader = GGUFReader(path)
        metadata = {
            name: field.contents()
            for name, field in reader.fields.items()
            if not name.startswith(_TEXT) or name in _ALSO_READ
        }
        tensors = {tensor.name: _stored(path, tensor) for tensor in reader.tensors}
    except (ValueError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: truncated or not a GGUF file: {error}") from error
    if metadata.get("split.count", 1) > 1:
        raise ValueError(
            f"{path}: one of {metadata['split.count']} parts; should be merged into one file"
        )
    return GgufFile(path, metadata, tensors)


def _stored(path: Path, tensor: Any) -> StoredTensor:
    shape = tuple(int(n) for n in reversed(tensor.shape))
    kind, start, num_bytes = tensor.tensor_type.name, tensor.data_offset, tensor.n_bytes
    return StoredTensor(tensor.name, path, kind, shape, int(start), int(num_bytes))


def is_known_type(tensor: StoredTensor) -> bool:
    """Whether its numbers can be read."""
    return tensor.dtype in DTYPES or tensor.dtype in QUANTISED


@dataclass(frozen=True, slots=True)
class GgufTensor(EncodedTensor):
    """A tensor of a GGUF file as a checkpoint has it.

    Attributes:
        matrix: rows and columns as they are stored; at least one of each.
        heads: rows of each of so many heads are stored as pairs for a rotation, the first of
            each pair from the head's first half; here halves follow each other again. 0: as is.
        log_of_negative: the file has `-exp` of the weight.
    """

    matrix: tuple[int, int]
    heads: int = 0
    log_of_negative: bool = False

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Some rows after others, in float32."""
        rows, columns = self.matrix
        stored = map_bytes(self, 4).view(rows, self.num_bytes // rows)
        decoded = torch.empty(rows, columns, dtype=dtype)
        order = torch.arange(rows)
        if self.heads:
            order = order.view(self.heads, 2, -1).transpose(1, 2).reshape(rows)
        count = max(1, _DECODED_AT_ONCE // max(1, columns))
        for start in range(0, rows, count):
            part = self._floats(stored[start : start + count])
            decoded[order[start : start + count]] = part.to(dtype)
        return decoded.view(self.shape)

    def _floats(self, rows: Tensor) -> Tensor:
        """float32 numbers of rows of bytes."""
        if self.dtype in DTYPES:
            numbers = rows.view(DTYPES[self.dtype]).float()
        else:
            from gguf import GGMLQuantizationType  # pyright: ignore[reportMissingImports]
            from gguf.quants import dequantize  # pyright: ignore[reportMissingImports]

            kind = GGMLQuantizationType[self.dtype]
            numbers = torch.from_numpy(dequantize(rows.numpy(), kind))
        return numbers.neg().log() if self.log_of_negative else numbers


def part_of(tensor: GgufTensor, index: int, count: int) -> GgufTensor:
    """Matrix `index` of `count` that lie one behind the other."""
    num_bytes, rows = tensor.num_bytes // count, tensor.matrix[0] // count
    return replace(
        tensor,
        shape=tensor.shape[1:],
        start=tensor.start + index * num_bytes,
        num_bytes=num_bytes,
        matrix=(rows, tensor.matrix[1]),
    )


@dataclass(frozen=True, slots=True)
class JoinedTensor(EncodedTensor):
    """Tensors of a GGUF file that are the rows of one."""

    parts: tuple[GgufTensor, ...]

    def decode(self, dtype: torch.dtype) -> Tensor:
        """All rows of the first, then all of the next, in each matrix."""
        decoded = torch.empty(self.shape, dtype=dtype)
        start = 0
        for part in self.parts:
            rows = part.shape[-2]
            decoded[..., start : start + rows, :] = part.decode(dtype)
            start += rows
        return decoded
