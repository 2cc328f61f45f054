"""moe_experts in plain torch: tokens sorted by expert, one product per expert that has any."""

from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.gated import gated
from hybridrt.kernels.linear import PackedMatrices, linear
from hybridrt.kernels.reference.gates import Gating

FEW_TOKENS = 64  # as a decode step has: then a CUDA device is not asked who got how many


def moe_experts(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"] | PackedMatrices,
    down: Float[Tensor, "experts hidden inner"] | PackedMatrices,
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
    gate_up_bias: Float[Tensor, "experts twice_inner"] | None = None,
    down_bias: Float[Tensor, "experts hidden"] | None = None,
    gating: Gating = "silu",
    alpha: float = 1.0,
    limit: float = inf,
) -> Float[Tensor, "tokens hidden"]:
    """See `hybridrt.kernels.moe_experts`."""
    top_k = expert_ids.shape[1]
    flat_ids = expert_ids.flatten()
    order = flat_ids.argsort(stable=True)
    tokens = order // top_k
    counts = torch.zeros(len(gate_up), dtype=torch.int64, device=x.device)
    counts.index_add_(0, flat_ids, torch.ones_like(flat_ids))
    inner = Inner(gate_up_bias, down_bias, gating, alpha, limit)
    if isinstance(gate_up, PackedMatrices) or isinstance(down, PackedMatrices):
        outputs = _one_by_one(x[tokens], gate_up, down, inner, counts)
    elif can_group(x, gate_up, down):
        outputs = multiply_groups(
            x[tokens], gate_up, down, inner, flat_ids[order], counts.cumsum(0, dtype=torch.int32)
        )
    elif x.is_cuda and len(x) <= FEW_TOKENS:
        outputs = _all_experts(x, gate_up, down, inner)[flat_ids[order], tokens]
    else:
        outputs = _one_by_one(x[tokens], gate_up, down, inner, counts)
    weighted = outputs.float() * weights.flatten()[order, None]
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    return total.index_add_(0, tokens, weighted).to(x.dtype)


class Inner(NamedTuple):
    """What an expert does beside its two products."""

    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    gating: Gating
    alpha: float
    limit: float

    def gated(self, gate_up: Tensor) -> Tensor:
        return gated(gate_up, self.gating, self.alpha, self.limit)


def _of(bias: Tensor | None, expert: int) -> Tensor | None:
    return None if bias is None else bias[expert]


def can_group(*tensors: Tensor) -> bool:
    """Whether torch can multiply groups on the device: bfloat16, rows of whole 16 bytes."""
    x = tensors[0]
    fitting = x.dtype == torch.bfloat16 and all(t.shape[-1] % 8 == 0 for t in tensors)
    return x.is_cuda and fitting and hasattr(F, "grouped_mm")


def _one_by_one(
    x: Float[Tensor, "assignments hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"] | PackedMatrices,
    down: Float[Tensor, "experts hidden inner"] | PackedMatrices,
    inner: Inner,
    counts: Int64[Tensor, " experts"],
) -> Float[Tensor, "assignments hidden"]:
    """A product for each expert that has tokens: the host has to know how many."""
    sizes = counts.tolist()
    outputs: list[Tensor] = []
    for expert, part in enumerate(x.split(sizes)):
        if sizes[expert]:
            values = linear(part, gate_up[expert], _of(inner.gate_up_bias, expert))
            outputs.append(linear(inner.gated(values), down[expert], _of(inner.down_bias, expert)))
    return torch.cat(outputs)


def _all_experts(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    inner: Inner,
) -> Float[Tensor, "experts tokens hidden"]:
    """Every expert on every token: more products, and no need to know which count."""
    values = torch.matmul(x, gate_up.transpose(1, 2))
    if inner.gate_up_bias is not None:
        values = values + inner.gate_up_bias[:, None]
    outputs = torch.matmul(inner.gated(values), down.transpose(1, 2))
    return outputs if inner.down_bias is None else outputs + inner.down_bias[:, None]


def multiply_groups(
    x: Float[Tensor, "assignments hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    inner: Inner,
    expert_ids: Int64[Tensor, " assignments"],
    ends: Int32[Tensor, " experts"],
) -> Float[Tensor, "assignments hidden"]:
    """The same by torch's grouped product (from 2.10 on), which reads the sizes itself."""
    values = F.grouped_mm(x, gate_up.transpose(1, 2), offs=ends)
    if inner.gate_up_bias is not None:
        values = values + inner.gate_up_bias[expert_ids]
    outputs = F.grouped_mm(inner.gated(values), down.transpose(1, 2), offs=ends)
    return outputs if inner.down_bias is None else outputs + inner.down_bias[expert_ids]
