"""moe_experts in Triton: tokens sorted by expert, a grid that holds any division of them."""

from math import inf
from typing import Literal, NamedTuple

import triton
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.triton.gates import kind_of
from hybridrt.kernels.triton.launch import row_strides
from hybridrt.kernels.triton.sort_by_expert import sort_by_expert
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
    inner, experts = down.shape[2], len(down)
    kind, by_turns = kind_of(gating)
    tiles = _tiles(tokens * top_k, experts, x.itemsize)
    sort = sort_by_expert(expert_ids, experts, tiles.rows)
    most = sort.tiles.shape[1]
    values = x.new_empty(tokens * top_k, inner)
    to_inner[(most * triton.cdiv(gate_up.shape[1], tiles.columns),)](
        x,
        gate_up,
        gate_up_bias,
        values,
        sort.order,
        sort.tiles,
        *x.stride(),
        *gate_up.stride(),
        *row_strides(gate_up_bias, 2),
        hidden,
        inner,
        top_k,
        most,
        alpha,
        limit,
        GATING=kind,
        BY_TURNS=by_turns,
        **tiles.options(hidden),
    )
    tiles = _tiles_of_down(tiles)
    out = x.new_empty(tokens * top_k, hidden)
    from_inner[(most * triton.cdiv(hidden, tiles.columns),)](
        values,
        down,
        down_bias,
        out,
        sort.order,
        sort.tiles,
        *down.stride(),
        *row_strides(down_bias, 2),
        inner,
        hidden,
        most,
        **tiles.options(inner),
    )
    return weighted_sum(out, weights, None, x.dtype)


class _Tiles(NamedTuple):
    """Assignments of a tile, rows of a matrix, and inputs of both at a time."""

    rows: int
    columns: int
    inputs: int
    warps: int
    stages: int

    def options(self, inputs: int) -> dict[str, int | bool]:
        """For a launch."""
        return {
            "WHOLE": inputs % self.inputs == 0,
            "HALVES": self.rows >= LEAST_IN_HALVES,
            "BLOCK_M": self.rows,
            "BLOCK_N": self.columns,
            "BLOCK_K": self.inputs,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


FEW = _Tiles(16, 128, 64, 4, 4)
"""For up to 16 assignments an expert: what counts is that weights are on their way."""

SOME = _Tiles(64, 128, 64, 4, 4)
MANY = _Tiles(128, 256, 64, 8, 4)
"""For more than 64 assignments an expert."""

MANY_OF_DOWN = _Tiles(128, 128, 64, 4, 3)
"""Products of few inputs: two programs at a time, one of which computes as the other stores."""

FEW_OF_FLOAT32 = _Tiles(16, 128, 32, 4, 4)
MANY_OF_FLOAT32 = _Tiles(64, 128, 32, 4, 3)

LEAST_IN_HALVES = 128
"""Of a tile of so many rows half is computed where no more are there."""


def _tiles(assignments: int, experts: int, itemsize: int) -> _Tiles:
    if assignments <= 16 * experts:
        return FEW if itemsize <= 2 else FEW_OF_FLOAT32
    if itemsize > 2:
        return MANY_OF_FLOAT32
    return SOME if assignments <= 64 * experts else MANY


def _tiles_of_down(tiles: _Tiles) -> _Tiles:
    return MANY_OF_DOWN if tiles is MANY else tiles
