"""The experts of a mixture in numba, of bfloat16: their matrices are read where they are.

Every thread has a share of the rows of each matrix, so that all have as much to do however many
tokens an expert has. Dot products are summed in the same order whatever else is in the batch, and
so are a token's experts.
"""

from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import BFloat16, Float, Int64
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import halves, integers, narrow, singles
from hybridrt.kernels.cpu.dot_bfloat16 import ROWS, VECTORS, make_dot
from hybridrt.kernels.cpu.expert_gates import SQUARED_RELU, Gate, apply_gate
from hybridrt.kernels.cpu.jit import argument, inner
from hybridrt.kernels.cpu.share import share, sharing_kernel, threads_for

BLOCK = 64  # rows of a matrix, which stay in an L2 cache for all tokens of an expert
GROUP = VECTORS[-1]  # tokens at once
SMALL = 500_000  # products: 10 us, not worth a second thread


@argument
class Sizes(NamedTuple):
    """Of what experts compute: an assignment is a token with one of its experts."""

    tokens: int
    top_k: int
    experts: int
    hidden: int
    inner: int


@argument
class Matrices(NamedTuple):
    """Addresses of all experts' matrices and biases: 0 where there are none."""

    first: int
    first_bias: int
    second: int
    second_bias: int

    @classmethod
    def of(
        cls, first: Tensor, second: Tensor, first_bias: Tensor | None, second_bias: Tensor | None
    ) -> "Matrices":
        """Where these stand: contiguous tensors, which whoever holds the addresses has to hold."""
        at_bias = [0 if bias is None else bias.data_ptr() for bias in (first_bias, second_bias)]
        return cls(first.data_ptr(), at_bias[0], second.data_ptr(), at_bias[1])


def run_experts(
    x: BFloat16[Tensor, "tokens hidden"],
    first: BFloat16[Tensor, "experts rows hidden"],
    second: BFloat16[Tensor, "experts hidden inner"],
    expert_ids: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
    first_bias: Float[Tensor, "experts rows"] | None,
    second_bias: Float[Tensor, "experts hidden"] | None,
    gate: Gate,
) -> BFloat16[Tensor, "tokens hidden"]:
    """`sum_j weights[t, j] * second[e] gate(first[e] x[t])`, e = `expert_ids[t, j]`.

    What the gate gives is rounded to bfloat16, as the second product reads it.

    Raises:
        IndexError: there is no expert of such a number.
    """
    sizes = Sizes(*expert_ids.shape, *second.shape)
    x, ids, weights = x.contiguous(), expert_ids.contiguous(), weights.float().contiguous()
    biases = [None if b is None else b.float().contiguous() for b in (first_bias, second_bias)]
    matrices = Matrices.of(first, second, *biases)
    values = torch.empty(ids.numel(), sizes.inner, dtype=x.dtype)
    out = torch.empty_like(x)
    products = values.numel() * sizes.hidden
    known = _run(
        *(x.data_ptr(), ids.data_ptr(), weights.data_ptr(), matrices, gate, sizes),
        *(values.data_ptr(), out.data_ptr()),
        threads_for(products, SMALL),
    )
    if not known:
        raise IndexError(f"expert ids should be 0 .. {sizes.experts - 1}: {expert_ids}")
    return out


_dot_1, _dot_2, _dot_4, _dot_6 = (make_dot(count) for count in VECTORS)


@inner
@no_type_check
def _multiply(
    matrix, bias, row, num_rows, vectors, count, size, sums, column
):  # fmt: skip  # pragma: no cover  (compiled, as all below)
    """Products of `count` vectors with rows of all experts' from `row` on, and their biases.

    Written to the columns of `sums: float32[GROUP, BLOCK]` from `column` on.
    """
    places, into = vectors.ctypes.data, sums.ctypes.data + 4 * column
    for r in range(0, num_rows, ROWS):
        at, to = matrix + 2 * (row + r) * size, into + 4 * r
        if count == 1:
            _dot_1(at, 2 * size, places, size, to, BLOCK)
        elif count == 2:
            _dot_2(at, 2 * size, places, size, to, BLOCK)
        elif count <= 4:
            _dot_4(at, 2 * size, places, size, to, BLOCK)
        else:
            _dot_6(at, 2 * size, places, size, to, BLOCK)
    if bias != 0:
        added = singles(bias + 4 * row, num_rows)
        for t in range(count):
            for r in range(num_rows):
                sums[t, column + r] += added[r]


@inner
@no_type_check
def by_expert(ids, sizes):  # pragma: no cover
    """Assignments in order by expert, and where those of each begin; none if one is unknown."""
    count = sizes.tokens * sizes.top_k
    expert_of, order = integers(ids, count), np.empty(count, np.int64)
    starts = np.zeros(sizes.experts + 1, np.int64)
    for i in range(count):
        if expert_of[i] < 0 or expert_of[i] >= sizes.experts:
            return order[:0], starts
        starts[expert_of[i] + 1] += 1
    for e in range(sizes.experts):
        starts[e + 1] += starts[e]
    place = starts.copy()
    for i in range(count):
        order[place[expert_of[i]]] = i
        place[expert_of[i]] += 1
    return order, starts


@inner
@no_type_check
def _begin(rows, worker, workers):  # pragma: no cover
    """Where a worker's rows begin, by whole `ROWS`."""
    return rows // ROWS * worker // workers * ROWS


@inner
@no_type_check
def _gate_some(e, row, size, a, count, vectors, matrices, gate, sizes, sums, values):
    # pragma: no cover
    """Values `row .. row + size` of `count` assignments from the a-th on, of expert e."""
    hidden, width = sizes.hidden, sizes.inner
    matrix, bias = matrices.first, matrices.first_bias
    given = np.empty((2, BLOCK), np.float32)
    if gate.kind == SQUARED_RELU:
        _multiply(matrix, bias, e * width + row, size, vectors, count, hidden, sums, 0)
        step, other = 1, 0
    elif gate.by_turns:
        at = 2 * (e * width + row)
        _multiply(matrix, bias, at, 2 * size, vectors, count, hidden, sums, 0)
        step, other = 2, 1
    else:
        at = 2 * e * width + row
        _multiply(matrix, bias, at, size, vectors, count, hidden, sums, 0)
        _multiply(matrix, bias, at + width, size, vectors, count, hidden, sums, size)
        step, other = 1, size
    for t in range(count):
        for i in range(size):
            given[0, i], given[1, i] = sums[t, step * i], sums[t, step * i + other]
        gates, out = given.ctypes.data, values + 2 * ((a + t) * width + row)
        apply_gate(gate, gates, gates + 4 * BLOCK, 0, out, 0, 1, size)


@inner
@no_type_check
def _first(
    worker, workers, x, matrices, gate, order, starts, sizes, values
):  # fmt: skip  # pragma: no cover
    """A worker's share of the values between the two products, of every assignment."""
    sums, vectors = np.zeros((GROUP, BLOCK), np.float32), np.empty(GROUP, np.int64)
    begin, end = _begin(sizes.inner, worker, workers), _begin(sizes.inner, worker + 1, workers)
    for e in range(sizes.experts):
        if starts[e] == starts[e + 1]:
            continue
        for row in range(begin, end, BLOCK // 2):
            size = min(BLOCK // 2, end - row)
            for a in range(starts[e], starts[e + 1], GROUP):
                count = min(GROUP, starts[e + 1] - a)
                for t in range(GROUP):
                    token = order[a + min(t, count - 1)] // sizes.top_k
                    vectors[t] = x + 2 * token * sizes.hidden
                _gate_some(
                    e, row, size, a, count, vectors, matrices, gate, sizes, sums, values
                )  # fmt: skip


@inner
@no_type_check
def _add_expert(
    e, row, size, values, matrices, weights, order, starts, sizes, sums, vectors, total
):  # fmt: skip  # pragma: no cover
    """Adds columns `row .. row + size` of an expert's outputs, by weight, to its tokens'."""
    width, hidden = sizes.inner, sizes.hidden
    matrix, bias = matrices.second, matrices.second_bias
    for a in range(starts[e], starts[e + 1], GROUP):
        count = min(GROUP, starts[e + 1] - a)
        for t in range(GROUP):
            vectors[t] = values + 2 * (a + min(t, count - 1)) * width
        _multiply(matrix, bias, e * hidden + row, size, vectors, count, width, sums, 0)
        for t in range(count):
            weight, token = weights[order[a + t]], order[a + t] // sizes.top_k
            for i in range(size):
                total[token, i] += weight * sums[t, i]


@inner
@no_type_check
def _second(
    worker, workers, values, matrices, weights, order, starts, sizes, out
):  # fmt: skip  # pragma: no cover
    """A worker's share of every token's outputs."""
    sums, vectors = np.zeros((GROUP, BLOCK), np.float32), np.empty(GROUP, np.int64)
    total = np.empty((sizes.tokens, BLOCK), np.float32)
    end, by_weight = _begin(sizes.hidden, worker + 1, workers), singles(weights, len(order))
    for row in range(_begin(sizes.hidden, worker, workers), end, BLOCK):
        size = min(BLOCK, end - row)
        total[:] = 0
        for e in range(sizes.experts):
            _add_expert(
                e, row, size, values, matrices, by_weight, order, starts, sizes, sums, vectors,
                total
            )  # fmt: skip
        for token in range(sizes.tokens):
            result = halves(out + 2 * (token * sizes.hidden + row), size)
            for i in range(size):
                result[i] = narrow(total[token, i])


@sharing_kernel
@no_type_check
def _run(x, ids, weights, matrices, gate, sizes, values, out, threads):  # pragma: no cover
    """Whether all experts are known; if not, nothing is computed."""
    order, starts = by_expert(ids, sizes)
    if len(order) < sizes.tokens * sizes.top_k:
        return False
    share(_first, threads, (x, matrices, gate, order, starts, sizes, values))
    share(_second, threads, (values, matrices, weights, order, starts, sizes, out))
    return True
