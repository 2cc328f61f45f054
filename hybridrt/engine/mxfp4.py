"""MXFP4: numbers of four bits, 32 of them with one power of two as their scale.

The format of Open Compute's Microscaling specification 1.0 (arXiv 2310.10537), as gpt-oss
stores its experts in it: `X_blocks` of uint8 `[experts, rows, groups, 16]`, two numbers a byte,
the low bits first, and `X_scales` of uint8 `[experts, rows, groups]`. What `X` is called in the
model has its matrices transposed, `[experts, groups * 32, rows]`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from hybridrt.engine.checkpoint import StoredTensor
from hybridrt.engine.sources import EncodedTensor, mapped

_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK_BYTES = 16
_BIAS = 127  # of a scale's exponent
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # E2M1; the fourth bit is the sign
_DECODED_AT_ONCE = 2**21  # bytes


def mxfp4_decoder(
    config: Mapping[str, Any],
) -> Callable[[Mapping[str, StoredTensor]], dict[str, StoredTensor]]:
    """How a checkpoint with this `quantization_config` is decoded. Its tensors' names say which."""
    return join_blocks


def join_blocks(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Every tensor by name, blocks with their scales as the one that they stand for.

    Raises:
        ValueError: blocks or scales are without the other, or don't fit together.
    """
    weights: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if name.endswith(_BLOCKS):
            whole = name.removesuffix(_BLOCKS)
            weights[whole] = _joined(tensor, _partner(stored, tensor, whole + _SCALES))
        elif name.endswith(_SCALES):
            _partner(stored, tensor, name.removesuffix(_SCALES) + _BLOCKS)
        else:
            weights[name] = tensor
    return weights


def _partner(stored: Mapping[str, StoredTensor], tensor: StoredTensor, name: str) -> StoredTensor:
    if name not in stored:
        raise ValueError(f"{tensor.file}: {tensor.name!r} is there without {name!r}")
    return stored[name]


@dataclass(frozen=True, slots=True)
class Mxfp4Tensor(EncodedTensor):
    """Blocks and their scales, read as the transposed matrices that they stand for."""

    blocks: StoredTensor
    scales: StoredTensor

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Some rows after some rows, in float32."""
        blocks, scales = mapped(self.blocks).flatten(0, -3), mapped(self.scales).flatten(0, -2)
        rows, groups = scales.shape
        decoded = torch.empty(rows, groups, 2 * _BLOCK_BYTES, dtype=dtype)
        count = max(1, _DECODED_AT_ONCE // max(groups * _BLOCK_BYTES, 1))
        for start in range(0, rows, count):
            part = slice(start, start + count)
            decoded[part] = dequantise_mxfp4(blocks[part], scales[part])
        experts, columns, rows = self.shape
        return decoded.view(experts, rows, columns).mT


def dequantise_mxfp4(
    blocks: UInt8[Tensor, "*groups 16"], scales: UInt8[Tensor, "*groups"]
) -> Float[Tensor, "*groups 32"]:
    """The numbers of each block, times `2 ** (scale - 127)`, in float32."""
    values = torch.tensor([*_MAGNITUDES, *(-m for m in _MAGNITUDES)])
    codes = torch.stack([blocks & 0x0F, blocks >> 4], dim=-1).flatten(-2)
    return torch.ldexp(values[codes.int()], scales.int()[..., None] - _BIAS)


def _joined(blocks: StoredTensor, scales: StoredTensor) -> Mxfp4Tensor:
    fits = blocks.shape == (*scales.shape, _BLOCK_BYTES) and len(scales.shape) == 3
    if not fits or {blocks.dtype, scales.dtype} != {"U8"}:
        raise ValueError(
            f"{blocks.file}: {blocks.name!r} is {blocks.dtype} {list(blocks.shape)} and "
            f"{scales.name!r} {scales.dtype} {list(scales.shape)}; should be U8 "
            f"[experts, rows, groups, {_BLOCK_BYTES}] and U8 [experts, rows, groups]"
        )
    experts, rows, groups = scales.shape
    return Mxfp4Tensor(
        name=blocks.name.removesuffix(_BLOCKS),
        file=blocks.file,
        dtype=blocks.dtype,
        shape=(experts, groups * 2 * _BLOCK_BYTES, rows),
        start=blocks.start,
        num_bytes=blocks.num_bytes,
        blocks=blocks,
        scales=scales,
    )


@dataclass(frozen=True, slots=True)
class PackedFp4Tensor(EncodedTensor):
    """A matrix of FP4 as DeepSeek-V4 stores it: two numbers of a row in each byte of `packed`."""

    packed: StoredTensor
    scales: StoredTensor

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Some rows after some rows, in float32."""
        blocks = mapped(self.packed).view(torch.uint8).unflatten(-1, (-1, _BLOCK_BYTES))
        scales = mapped(self.scales).view(torch.uint8)
        decoded = torch.empty(self.shape, dtype=dtype)
        count = max(1, _DECODED_AT_ONCE // max(self.packed.shape[1], 1))
        for start in range(0, len(decoded), count):
            part = slice(start, start + count)
            decoded[part] = dequantise_mxfp4(blocks[part], scales[part]).flatten(-2)
        return decoded


def packed_fp4(packed: StoredTensor, scales: StoredTensor) -> PackedFp4Tensor:
    """The matrix that these numbers and their scales stand for.

    Raises:
        ValueError: there isn't one scale for every 32 numbers of a row.
    """
    shape = packed.shape
    fits = len(shape) == 2 and shape[1] % _BLOCK_BYTES == 0
    if (
        not fits
        or scales.shape != (shape[0], shape[1] // _BLOCK_BYTES)
        or (scales.dtype not in ("F8_E8M0", "U8"))
    ):
        raise ValueError(
            f"{packed.file}: {packed.name!r} is {packed.dtype} {list(shape)} and {scales.name!r} "
            f"{scales.dtype} {list(scales.shape)}; should be I8 [rows, columns / 2] and F8_E8M0 "
            f"or U8 [rows, columns / {2 * _BLOCK_BYTES}]"
        )
    return PackedFp4Tensor(
        name=packed.name,
        file=packed.file,
        dtype=packed.dtype,
        shape=(shape[0], 2 * shape[1]),
        start=packed.start,
        num_bytes=packed.num_bytes,
        packed=packed,
        scales=scales,
    )
