"""Norms. All of them square in float32."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional as F

from hybridrt.kernels.gated_rms_norm import gated_rms_norm
from hybridrt.kernels.rms_norm import add_rms_norm, rms_norm
from hybridrt.layers.linear import Linear
from hybridrt.layers.watched import is_watched


class RMSNorm(nn.Module):
    """`weight * x / sqrt(mean(x^2) + eps)` over the last axis (arXiv 1910.07467).

    A float32 residual stream may come in; what goes out has the weight's dtype.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        return rms_norm(x, self.weight, self.eps)


class Float32RMSNorm(RMSNorm):
    """An RMSNorm whose weight is in float32 whatever the model's dtype, which goes in and out."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)
        weight = torch.empty(size, dtype=torch.float32)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class BiasedRMSNorm(RMSNorm):
    """`RMSNorm` plus a bias, as xLSTM may have it."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)
        self.bias = nn.Parameter(torch.empty(size), requires_grad=False)

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        return super().forward(x) + self.bias


class OffsetRMSNorm(RMSNorm):
    """`(1 + weight) * x / sqrt(mean(x^2) + eps)`, as in Gemma (arXiv 2403.08295)."""

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        return rms_norm(x, self.weight, self.eps, offset=1.0)


class GroupedOffsetRMSNorm(OffsetRMSNorm):
    """`OffsetRMSNorm` of each of `num_groups` equal parts of the last axis by itself."""

    def __init__(self, size: int, eps: float, num_groups: int) -> None:
        super().__init__(size, eps)
        self.num_groups = num_groups

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        parts = x.float().unflatten(-1, (self.num_groups, -1))
        normed = F.rms_norm(parts, parts.shape[-1:], None, self.eps).flatten(-2)
        return (normed * (1 + self.weight.float())).to(self.weight.dtype)


class LayerNorm(nn.Module):
    """`weight * (x - mean(x)) / sqrt(var(x) + eps) + bias`, over the last axis.

    Source: arXiv 1607.06450. What goes out has the weight's dtype.
    """

    has_bias: ClassVar[bool] = True

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        bias = torch.empty(size) if self.has_bias else None
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        weight, bias = self.weight.float(), None if self.bias is None else self.bias.float()
        return F.layer_norm(x.float(), weight.shape, weight, bias, self.eps).to(self.weight.dtype)


class UnbiasedLayerNorm(LayerNorm):
    """`LayerNorm` without its bias, as in Command R."""

    has_bias = False


class OffsetLayerNorm(LayerNorm):
    """`LayerNorm` whose weight is stored less one, as in Nemotron (arXiv 2402.16819)."""

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        assert self.bias is not None
        weight, bias = 1 + self.weight.float(), self.bias.float()
        return F.layer_norm(x.float(), weight.shape, weight, bias, self.eps).to(self.weight.dtype)


class GatedRMSNorm(nn.Module):
    """Mamba-2's output norm: `norm(x * gate(z))`, or `norm(x) * gate(z)`.

    See `hybridrt.kernels.gated_rms_norm` for its parameters.
    """

    def __init__(
        self,
        size: int,
        eps: float,
        num_groups: int,
        norm_before_gate: bool,
        gate: Literal["silu", "sigmoid"] = "silu",
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps
        self.num_groups = num_groups
        self.norm_before_gate = norm_before_gate
        self.gate: Literal["silu", "sigmoid"] = gate

    def forward(
        self, x: Float[Tensor, "*batch size"], z: Float[Tensor, "*batch size"]
    ) -> Float[Tensor, "*batch size"]:
        return gated_rms_norm(
            x, z, self.weight, self.eps, self.num_groups, self.norm_before_gate, self.gate
        )


class SelfGatedRMSNorm(nn.Module):
    """`y * sigmoid(up(silu(down(y))))` of the norm `y` of x, by way of `rank` channels (A.X-K2)."""

    def __init__(self, size: int, eps: float, rank: int) -> None:
        super().__init__()
        self.norm = RMSNorm(size, eps)
        self.down = Linear(size, rank)
        self.up = Linear(rank, size)

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        y = self.norm(x)
        return y * torch.sigmoid(self.up(F.silu(self.down(y))))


_OFFSETS: Mapping[Callable[..., Any], float] = {RMSNorm.forward: 0.0, OffsetRMSNorm.forward: 1.0}
"""What a forward that is `rms_norm` alone adds to the weight."""


def add_and_norm(
    x: Float[Tensor, "*batch size"],
    y: Float[Tensor, "*batch size"],
    norm: nn.Module,
    scale: float = 1.0,
) -> tuple[Float[Tensor, "*batch size"], Float[Tensor, "*batch size"]]:
    """`x + scale * y` and its norm, at once where that one's call is `rms_norm` and nothing else.

    A compiler gets the two apart: it joins them with more than them.
    """
    offset = plain_offset(norm)
    if offset is None or x.shape != y.shape:
        x = x + y if scale == 1.0 else x + y * scale
        return x, norm(x)
    assert isinstance(norm, RMSNorm)
    return add_rms_norm(x, y, norm.weight, norm.eps, offset, scale)


def plain_offset(norm: nn.Module) -> float | None:
    """What a norm adds to its weight, if its call is `rms_norm` and nothing else, and not compiled.

    None: it is to be called itself.
    """
    offset = None if is_compiling() else _OFFSETS.get(type(norm).forward)
    return None if offset is None or is_watched(norm) else offset
