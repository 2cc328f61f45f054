"""moe_experts in Triton: tokens sorted by expert, a grid that holds any division of them."""

from math import inf
from typing import Literal, NamedTuple

from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.kernels.reference.gates import Gating
from hybridrt.kernels.triton.gates import kind_of
from hybridrt.kernels.triton.launch import cdiv, row_strides
from hybridrt.kernels.triton.sort_by_expert import Sorted, sort_by_expert
from hybridrt.kernels.triton.sorted_experts import multiply_tiles
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
    inner, assignments = down.shape[2], tokens * top_k
    tiles = _tiles(assignments, len(down), x.itemsize)
    sort = sort_by_expert(expert_ids, len(down), tiles.rows)
    kind, by_turns = kind_of(gating)
    gate = _Gate(kind, by_turns, alpha, limit)
    values = x.new_empty(assignments, inner)
    _multiply(x, gate_up, gate_up_bias, values, sort, tiles, gate)
    out = x.new_empty(assignments, hidden)
    _multiply(values, down, down_bias, out, sort, _tiles_of_down(tiles), None)
    return weighted_sum(out, weights, None, x.dtype)


class _Gate(NamedTuple):
    """What `kind_of` says, and the numbers of `Gating`."""

    kind: str
    by_turns: bool
    alpha: float
    limit: float


def _multiply(
    given: Float[Tensor, "rows inputs"],
    matrices: Float[Tensor, "experts outputs inputs"],
    bias: Float[Tensor, "experts outputs"] | None,
    out: Float[Tensor, "assignments columns"],
    sort: Sorted,
    tiles: "Tiles",
    gate: _Gate | None,
) -> None:
    """With a gate, of tokens to the assignments by expert; without one from there on."""
    kind, by_turns, alpha, limit = gate or _Gate("", False, 1.0, 1.0)
    (_, outputs, inputs), most = matrices.shape, sort.tiles.shape[1]
    blocks = tiles.blocks if outputs % (tiles.blocks * tiles.columns) == 0 else 1
    multiply_tiles[(most * cdiv(outputs, tiles.columns * blocks),)](
        given,
        matrices,
        bias,
        out,
        sort.order,
        sort.tiles,
        *given.stride(),
        *matrices.stride(),
        *row_strides(bias, 2),
        inputs,
        outputs,
        sort.places.shape[1],
        most,
        blocks,
        alpha,
        limit,
        GATING=kind or None,
        BY_TURNS=by_turns,
        OF_TOKENS=gate is not None,
        WHOLE=inputs % tiles.inputs == 0,
        HALVES=tiles.rows >= LEAST_IN_HALVES,
        BLOCK_M=tiles.rows,
        BLOCK_N=tiles.columns,
        BLOCK_K=tiles.inputs,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )


class Tiles(NamedTuple):
    """Assignments of a tile, rows of a matrix, inputs of both at a time; blocks of a program."""

    rows: int
    columns: int
    inputs: int
    blocks: int
    warps: int
    stages: int


FEW = Tiles(16, 128, 64, 1, 4, 4)
"""For up to 16 assignments an expert: what counts is that weights are on their way."""

SOME = Tiles(64, 128, 64, 1, 4, 4)
"""For up to 64."""

MANY = Tiles(128, 256, 64, 2, 8, 4)
"""For more."""

MANY_OF_DOWN = Tiles(128, 256, 64, 4, 8, 4)
"""For their second product, which has few inputs."""

FEW_OF_FLOAT32 = Tiles(16, 128, 32, 1, 4, 4)
MANY_OF_FLOAT32 = Tiles(64, 128, 32, 1, 4, 3)

LEAST_IN_HALVES = 128
"""Of a tile of so many rows half is computed where no more are there."""


def _tiles(assignments: int, experts: int, itemsize: int) -> Tiles:
    if assignments <= 16 * experts:
        return FEW if itemsize <= 2 else FEW_OF_FLOAT32
    if itemsize > 2:
        return MANY_OF_FLOAT32
    return SOME if assignments <= 64 * experts else MANY


def _tiles_of_down(tiles: Tiles) -> Tiles:
    return MANY_OF_DOWN if tiles is MANY else tiles
