"""The matrix product of a linear layer, and the layout of its weight that suits the device."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.kernels.quantised_linear import (
    QuantisedMatrices,
    QuantisedWeight,
    quantised_linear,
)

PackedMatrices = nn.ParameterList | QuantisedMatrices
"""Matrices that `pack_weight` gave, or quantised ones, where plain ones are stacked in a tensor."""


def pack_weight(weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "outputs inputs"]:
    """The weight as `linear` reads it fastest: itself, or a copy in oneDNN's own layout.

    On a CPU that multiplies bfloat16, oneDNN would bring the weight into that layout at
    every call. The results are the same bit for bit. The copy has the same shape, dtype and
    size, but its elements can't be looked at.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or not _has_onednn():
        return weight
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


def linear(
    x: Float[Tensor, "*batch inputs"],
    weight: Float[Tensor, "outputs inputs"] | QuantisedWeight,
    bias: Float[Tensor, " outputs"] | None,
) -> Float[Tensor, "*batch outputs"]:
    """`x W^T + b`, with a weight that is plain, or that `pack_weight` or `quantise_weight` gave."""
    if isinstance(weight, QuantisedWeight):
        return quantised_linear(x, weight, bias)
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def _has_onednn() -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
