"""relu2_experts in plain torch: tokens sorted by expert, one product per expert that has any."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.linear import PackedMatrices, linear
from hybridrt.kernels.quantised_linear import QuantisedWeight
from hybridrt.kernels.reference.moe import FEW_TOKENS


def relu2_experts(
    x: Float[Tensor, "tokens hidden"],
    up: Float[Tensor, "experts inner hidden"] | PackedMatrices,
    down: Float[Tensor, "experts hidden inner"] | PackedMatrices,
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens hidden"]:
    """See `hybridrt.kernels.relu2_experts`."""
    top_k = expert_ids.shape[1]
    flat_ids = expert_ids.flatten()
    order = flat_ids.argsort(stable=True)
    tokens = order // top_k
    if isinstance(up, Tensor) and isinstance(down, Tensor) and x.is_cuda and len(x) <= FEW_TOKENS:
        # Every expert on every token: more products, and no need to know which count.
        inner = F.relu(torch.matmul(x, up.transpose(1, 2))).square()
        outputs = torch.matmul(inner, down.transpose(1, 2))[flat_ids[order], tokens]
    else:
        counts = torch.bincount(flat_ids, minlength=len(up)).tolist()
        parts = enumerate(x[tokens].split(counts))
        outputs = torch.cat([_expert(part, up[e], down[e]) for e, part in parts if len(part)])
    weighted = outputs.float() * weights.flatten()[order, None]
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    return total.index_add_(0, tokens, weighted).to(x.dtype)


def _expert(
    x: Float[Tensor, "assignments hidden"],
    up: Float[Tensor, "inner hidden"] | QuantisedWeight,
    down: Float[Tensor, "hidden inner"] | QuantisedWeight,
) -> Float[Tensor, "assignments hidden"]:
    return linear(F.relu(linear(x, up, None)).square_(), down, None)
