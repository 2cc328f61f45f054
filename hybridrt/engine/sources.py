"""Sources: what a weight is filled from, one tensor of a file or what is computed from some."""

import mmap
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridrt.engine.checkpoint import StoredTensor

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""What weights may be stored as, by safetensors' name."""
INTEGERS = {"I32": torch.int32, "I64": torch.int64}
"""What places of whole numbers may be stored as."""
RAW_DTYPES = {
    **DTYPES,
    **INTEGERS,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
"""What any of these and parts of encoded weights may be stored as."""


@dataclass(frozen=True, slots=True)
class EncodedTensor(StoredTensor, ABC):
    """A weight that has to be decoded: its shape, and the bytes of its largest part."""

    @abstractmethod
    def decode(self, dtype: torch.dtype) -> Tensor:
        """The weight, of `shape`, in `dtype`. Takes little memory beyond the result."""


def is_loadable(tensor: StoredTensor, *, holds_integers: bool = False) -> bool:
    """Whether `read` knows what the bytes mean, for a place of such numbers."""
    if holds_integers:
        return tensor.dtype in INTEGERS
    return isinstance(tensor, EncodedTensor) or tensor.dtype in DTYPES


def read(tensor: StoredTensor, dtype: torch.dtype) -> Tensor:
    """The weight: as it is stored, or decoded to `dtype`."""
    return tensor.decode(dtype) if isinstance(tensor, EncodedTensor) else mapped(tensor)


def mapped(tensor: StoredTensor) -> Tensor:
    """A tensor over the file's own pages, which are unmapped when it is dropped."""
    dtype = RAW_DTYPES[tensor.dtype]
    return map_bytes(tensor, dtype.itemsize).view(dtype).view(tensor.shape)


def map_bytes(tensor: StoredTensor, alignment: int = 1) -> Tensor:
    """The tensor's bytes in its file, `uint8 [num_bytes]`; a copy where they aren't aligned."""
    if tensor.num_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    skip = tensor.start % mmap.ALLOCATIONGRANULARITY
    with tensor.file.open("rb") as stream:
        # A private writable map, as torch warns of read-only memory. Nothing is written to it.
        length, offset = tensor.num_bytes + skip, tensor.start - skip
        pages = mmap.mmap(stream.fileno(), length, access=mmap.ACCESS_COPY, offset=offset)
    raw = torch.frombuffer(pages, dtype=torch.uint8, count=tensor.num_bytes, offset=skip)
    return raw.clone() if tensor.start % alignment else raw
