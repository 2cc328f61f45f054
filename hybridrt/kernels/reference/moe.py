"""moe_experts in plain torch: tokens sorted by expert, one product per expert that has any."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import linear, silu


def moe_experts(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens hidden"]:
    """See `hybridrt.kernels.moe_experts`."""
    top_k = expert_ids.shape[1]
    flat_ids = expert_ids.flatten()
    order = flat_ids.argsort(stable=True)
    tokens = order // top_k
    counts = torch.bincount(flat_ids, minlength=gate_up.shape[0]).tolist()
    parts = x[tokens].split(counts)
    outputs = [
        _swiglu(part, gate_up[expert], down[expert])
        for expert, part in enumerate(parts)
        if counts[expert]
    ]
    weighted = torch.cat(outputs).float() * weights.flatten()[order, None]
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    return total.index_add_(0, tokens, weighted).to(x.dtype)


def _swiglu(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "twice_inner hidden"],
    down: Float[Tensor, "hidden inner"],
) -> Float[Tensor, "tokens hidden"]:
    gate, up = linear(x, gate_up).chunk(2, dim=-1)
    return linear(silu(gate) * up, down)
