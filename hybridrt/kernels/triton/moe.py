"""moe_experts in Triton: tokens sorted by expert, a grid that holds any division of them."""

from math import inf
from typing import Literal, NamedTuple

import torch
import triton
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.triton.gates import kind_of
from hybridrt.kernels.triton.launch import row_strides
from hybridrt.kernels.triton.sorted_experts import from_inner, to_inner
from hybridrt.kernels.triton.weighted_sum import weighted_sum


def moe_experts(
    x: Float[Tensor, "tokens hidden"],
    gate_up: Float[Tensor, "experts twice_inner hidden"],
    down: Float[Tensor, "experts hidden inner"],
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
    gate_up_bias: Float[Tensor, "experts twice_inner"] | None = None,
    down_bias: Float[Tensor, "experts hidden"] | None = None,
    gating: Gating | Literal["relu2"] = "silu",
    alpha: float = 1.0,
    limit: float = inf,
) -> Float[Tensor, "tokens hidden"]:
    """See `hybridrt.kernels.moe.stacked_moe_experts`, and `relu2_moe` for "relu2"."""
    (tokens, hidden), top_k = x.shape, expert_ids.shape[1]
    if tokens == 0:
        return x.new_zeros(x.shape)
    inner = down.shape[2]
    tiles = _tiles(tokens * top_k, gate_up.shape[0], x.itemsize)
    routing = _routing(expert_ids, gate_up.shape[0], tiles.rows)
    values = x.new_empty(tokens * top_k, inner)
    kind, by_turns = kind_of(gating)
    to_inner[(tiles.most, triton.cdiv(inner, tiles.columns))](
        x,
        gate_up,
        gate_up_bias,
        values,
        *routing,
        *x.stride(),
        *gate_up.stride(),
        *row_strides(gate_up_bias, 2),
        hidden,
        inner,
        top_k,
        alpha,
        limit,
        GATING=kind,
        BY_TURNS=by_turns,
        **tiles.options(len(routing.ends)),
    )
    out = torch.empty(tokens * top_k, hidden, dtype=torch.float32, device=x.device)
    from_inner[(tiles.most, triton.cdiv(hidden, tiles.columns))](
        values,
        down,
        down_bias,
        out,
        *routing,
        *down.stride(),
        *row_strides(down_bias, 2),
        inner,
        hidden,
        **tiles.options(len(routing.ends)),
    )
    return weighted_sum(out, weights, None, x.dtype)


class _Routing(NamedTuple):
    """Assignments in the order of their experts; where each expert's and its tiles end."""

    order: Int64[Tensor, " assignments"]
    ends: Int64[Tensor, " experts"]
    tile_ends: Int64[Tensor, " experts"]


def _routing(expert_ids: Int64[Tensor, "tokens top_k"], experts: int, rows: int) -> _Routing:
    """All of it on the device: the host never learns who got how many."""
    ids = expert_ids.flatten()
    counts = torch.zeros(experts, dtype=torch.int64, device=ids.device)
    counts.index_add_(0, ids, torch.ones_like(ids))
    tiles = (counts + (rows - 1)) // rows
    return _Routing(ids.argsort(stable=True), counts.cumsum(0), tiles.cumsum(0))


class _Tiles(NamedTuple):
    """Assignments, columns and inputs of a tile; the most tiles that there can be."""

    rows: int
    columns: int
    inputs: int
    most: int
    warps: int
    stages: int

    def options(self, experts: int) -> dict[str, int]:
        """For a launch."""
        return {
            "EXPERTS": experts,
            "BLOCK_E": triton.next_power_of_2(experts),
            "BLOCK_M": self.rows,
            "BLOCK_N": self.columns,
            "BLOCK_K": self.inputs,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def _tiles(assignments: int, experts: int, itemsize: int) -> _Tiles:
    """Few assignments an expert are bound by reading weights: narrow tiles, more on their way."""
    rows = 16 if assignments <= 16 * experts else 64
    # Every expert may have a last tile that isn't full; none has a tile without an assignment.
    most = min(assignments, triton.cdiv(assignments, rows) + experts)
    stages = 4 if rows == 16 else 3
    return _Tiles(rows, 64, 128 // itemsize, most, 4, stages)
