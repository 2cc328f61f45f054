"""Quantised checkpoints: weights that are decoded while they are loaded.

`quantization_config` names how. The weights of the model are what the stored numbers stand
for, in the model's dtype; activations are not quantised. A method that isn't here is refused.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hybridrt.engine.checkpoint import StoredTensor
from hybridrt.engine.mxfp4 import mxfp4_decoder, packed_fp4
from hybridrt.engine.sources import EncodedTensor, mapped

Tensors: TypeAlias = Mapping[str, StoredTensor]

_SCALES = ("_scale_inv", "_scale")  # both multiply
_SCALE_DTYPES = ("F32", "BF16", "F16", "F8_E8M0", "U8")  # bytes are those of F8_E8M0
_OF_ACTIVATIONS = ("input_scale", "activation_scale")
_DECODED_AT_ONCE = 2**22  # elements


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How the weights of a checkpoint are encoded: `decode` takes what is stored to weights."""

    method: str
    decode: Callable[[Tensors], dict[str, StoredTensor]]

    def decoded(self, stored: Tensors) -> dict[str, StoredTensor]:
        """The weights by name.

        Raises:
            ValueError: parts of a weight don't fit together.
        """
        return self.decode(stored)


def read_quantisation(config: Mapping[str, Any]) -> Quantisation | None:
    """What the `quantization_config` of a `config.json` says; None if it has none.

    Raises:
        ValueError: it isn't one of those that can be decoded.
    """
    given = config.get("quantization_config")
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ValueError(f"config.json: quantization_config={given!r} should be an object")
    method = given.get("quant_method")
    if method not in _METHODS:
        raise _refusal("quant_method", method, f"one of {', '.join(sorted(_METHODS))}")
    return Quantisation(method, _METHODS[method](given))


def _refusal(key: str, value: Any, right: str) -> ValueError:
    return ValueError(f"config.json: quantization_config: {key}={value!r} should be {right}")


def _fp8(config: Mapping[str, Any]) -> Callable[[Tensors], dict[str, StoredTensor]]:
    """A scale for a block (DeepSeek-V3, arXiv 2412.19437, section 3.3), a row or a tensor.

    Experts may be packed FP4 (DeepSeek-V4).
    """
    for key, right in (("fmt", ("e4m3",)), ("expert_dtype", ("fp8", "fp4"))):
        if config.get(key) not in (None, *right):
            raise _refusal(key, config[key], " or ".join(map(repr, right)))
    block = config.get("weight_block_size")
    if block is not None:
        block = _block(block, "weight_block_size")
    return lambda stored: _pair_scales(stored, block)


def _compressed_tensors(config: Mapping[str, Any]) -> Callable[[Tensors], dict[str, StoredTensor]]:
    """FP8 weights, `float-quantized`, with a scale for a tensor, a row or a block."""
    formats = ("float-quantized", "naive-quantized")
    if config.get("format") not in formats:
        raise _refusal("format", config.get("format"), f"one of {', '.join(formats)}")
    sparsity = config.get("sparsity_config") or {}
    if sparsity.get("format", "dense") != "dense":
        raise _refusal("sparsity_config.format", sparsity["format"], "'dense'")
    block: tuple[int, int] | None = None
    for name, group in (config.get("config_groups") or {}).items():
        weights = group.get("weights") or {}
        right = {"num_bits": 8, "type": "float", "symmetric": True}
        for key, value in right.items():
            if weights.get(key, True) != value:
                raise _refusal(f"{name}.weights.{key}", weights.get(key), repr(value))
        strategies = ("tensor", "channel", "block")
        if weights.get("strategy") not in strategies:
            key = f"{name}.weights.strategy"
            raise _refusal(key, weights.get("strategy"), f"one of {', '.join(strategies)}")
        if weights["strategy"] == "block":
            block = _block(weights.get("block_structure"), f"{name}.weights.block_structure")
    return lambda stored: _pair_scales(stored, block)


_METHODS = {"fp8": _fp8, "compressed-tensors": _compressed_tensors, "mxfp4": mxfp4_decoder}


def _block(given: Any, key: str) -> tuple[int, int]:
    sizes = given if isinstance(given, list | tuple) else ()
    if len(sizes) != 2 or any(type(size) is not int or size < 1 for size in sizes):
        raise _refusal(key, given, "two numbers of rows and columns")
    return sizes[0], sizes[1]


def _pair_scales(stored: Tensors, block: tuple[int, int] | None) -> dict[str, StoredTensor]:
    """Every FP8 or packed FP4 tensor with its scale; scales of activations left out."""
    weights: dict[str, StoredTensor] = {}
    taken: set[str] = set()
    for name, tensor in stored.items():
        module = name.rpartition(".")[0]
        names = [*(name + end for end in _SCALES), f"{module}.scale"]
        scales = [scale for scale in names if scale in stored]
        if tensor.dtype not in ("F8_E4M3", "I8") or not scales:
            weights[name] = tensor
            continue
        scale = stored[scales[0]]
        packed = tensor.dtype == "I8"
        weights[name] = packed_fp4(tensor, scale) if packed else _scaled(tensor, scale, block)
        taken.update(scales, (f"{module}.{key}" for key in _OF_ACTIVATIONS))
    return {name: tensor for name, tensor in weights.items() if name not in taken}


@dataclass(frozen=True, slots=True)
class ScaledTensor(EncodedTensor):
    """FP8 numbers; each is multiplied by the scale of its block of `(rows, columns)`."""

    scale: StoredTensor
    block: tuple[int, int]

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Row of blocks after row of blocks, in float32."""
        rows, columns = self.block
        weights = mapped(self).view(-1, *_matrix(self.shape))
        scale = mapped(self.scale)
        scale = scale.view(torch.float8_e8m0fnu) if scale.dtype == torch.uint8 else scale
        scales = scale.float().view(len(weights), *_grid(self.shape, self.block))
        decoded = torch.empty(weights.shape, dtype=dtype)
        count = max(1, _DECODED_AT_ONCE // (rows * weights.shape[-1])) * rows
        for weight, scale, result in zip(weights, scales, decoded, strict=True):
            wide = scale.repeat_interleave(columns, dim=1)[:, : weight.shape[1]]
            for start in range(0, len(weight), count):
                part = weight[start : start + count].float()
                by = wide[start // rows : (start + count) // rows]
                part *= by.repeat_interleave(rows, dim=0)[: len(part)]
                result[start : start + count] = part
        return decoded.view(self.shape)


def _scaled(
    tensor: StoredTensor, scale: StoredTensor, block: tuple[int, int] | None
) -> ScaledTensor:
    """The block is what the shape of the scales says: for a tensor, a row, or as the config has it.

    Raises:
        ValueError: the scales are of another shape or dtype.
    """
    rows, columns = _matrix(tensor.shape)
    ways = [(rows, columns), (1, columns), *([] if block is None else [block])]
    matrices = math.prod(tensor.shape[:-2])
    for way in ways:
        grid = _grid(tensor.shape, way)
        if math.prod(scale.shape) == matrices * math.prod(grid) and _fits(scale, tensor, grid):
            break
    else:
        raise ValueError(
            f"{scale.file}: {scale.name!r} is {scale.dtype} {list(scale.shape)}, which is no scale "
            f"of {tensor.name!r} {list(tensor.shape)}: should be one number, one a row"
            + ("" if block is None else f", or one for each block of {block[0]} x {block[1]}")
            + f", of {', '.join(_SCALE_DTYPES)}"
        )
    stored = (tensor.name, tensor.file, tensor.dtype, tensor.shape, tensor.start, tensor.num_bytes)
    return ScaledTensor(*stored, scale, way)


def _fits(scale: StoredTensor, tensor: StoredTensor, grid: tuple[int, int]) -> bool:
    """Whether the scales are the grid, a last axis of one, or axes of a single matrix, left out."""
    if scale.dtype not in _SCALE_DTYPES:
        return False
    whole = (*tensor.shape[:-2], *grid)
    return [n for n in scale.shape if n != 1] == [n for n in whole if n != 1]


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of the matrices in a tensor; a vector is one column."""
    return (shape[-2], shape[-1]) if len(shape) > 1 else (math.prod(shape), 1)


def _grid(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the scales of a matrix."""
    rows, columns = _matrix(shape)
    return -(-rows // block[0]), -(-columns // block[1])
