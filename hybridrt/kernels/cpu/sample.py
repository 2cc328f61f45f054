"""sample in numba: weights are summed in blocks, and made again in the block of the draw."""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from torch import Tensor

from hybridrt.kernels.cpu.bfloat16 import doubles, integers, singles
from hybridrt.kernels.cpu.jit import inline, inner, inner_sums
from hybridrt.kernels.cpu.share import parallel_kernel, share_each, threads_for
from hybridrt.kernels.cpu.vector_math import larger, largest_lane
from hybridrt.kernels.cpu.vectors import LANES, load, pointer

BLOCK = 512

EXPONENT = np.int64(1023 + 40)  # that of 2^40 in a float64
LOG2_E = np.log2(np.e)
# Its first digits, so that a product with a whole number is exact, and the rest.
LN2 = np.float64.fromhex("0x1.62e42fee00000p-1"), np.float64.fromhex("0x1.a39ef35793c76p-33")
SMALLEST = np.float64(-29.0)  # exp of less is below 2^-41, whose weight is 0
# exp on [-ln 2 / 2, ln 2 / 2]: its Taylor series, whose next term is below 2^-57.
POWERS = tuple(np.float64(1 / f) for f in np.cumprod([1.0, *range(1, 14)]))


def sample(
    logits: Float[Tensor, "rows vocab"],
    temperature: Float64[Tensor, " rows"],
    least: Float64[Tensor, " rows"],
    uniform: Float64[Tensor, " rows"],
) -> Int64[Tensor, " rows"]:
    """See `hybridrt.kernels.reference.sample`."""
    return _draw(logits, *(part.double().contiguous() for part in (temperature, least, uniform)))


def likeliest(logits: Float[Tensor, "rows vocab"]) -> Int64[Tensor, " rows"]:
    """What `sample` gives at temperature 0."""
    return _draw(logits)


def _draw(logits: Tensor, *of_rows: Tensor) -> Int64[Tensor, " rows"]:
    logits = logits.float().contiguous()
    tokens = torch.empty(len(logits), dtype=torch.int64)
    if logits.numel():
        addresses = [part.data_ptr() for part in of_rows] or [0, 0, 0]
        _all(
            *(threads_for(logits.numel()), logits.data_ptr(), *addresses, tokens.data_ptr()),
            *logits.shape,
        )
    return tokens


@intrinsic
@no_type_check
def _float64_of_bits(typing_context, bits):
    def code(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), code


@inline
@no_type_check
def _weight(logit, largest, temperature, least):  # pragma: no cover  (compiled, as all below)
    """Of a token; see the contract."""
    x = (np.float64(logit) - largest) / temperature
    y = max(x, SMALLEST)
    whole = np.floor(y * LOG2_E + 0.5)
    f = (y - whole * LN2[0]) - whole * LN2[1]
    p = POWERS[13]
    p = p * f + POWERS[12]
    p = p * f + POWERS[11]
    p = p * f + POWERS[10]
    p = p * f + POWERS[9]
    p = p * f + POWERS[8]
    p = p * f + POWERS[7]
    p = p * f + POWERS[6]
    p = p * f + POWERS[5]
    p = p * f + POWERS[4]
    p = p * f + POWERS[3]
    p = p * f + POWERS[2]
    p = p * f + POWERS[1]
    p = p * f + POWERS[0]
    scaled = p * _float64_of_bits((np.int64(whole) + EXPONENT) << np.int64(52))
    return np.int64(scaled) if x >= least else np.int64(0)


@inner_sums
@no_type_check
def _sum(logits, largest, temperature, least):  # pragma: no cover
    """Of the weights."""
    total = np.int64(0)
    for i in range(len(logits)):
        total += _weight(logits[i], largest, temperature, least)
    return total


@inner_sums  # as `_sum`, so that a weight is the same in both
@no_type_check
def _drawn(logits, largest, temperature, least, uniform):  # pragma: no cover
    blocks = -(-len(logits) // BLOCK)
    sums = np.empty(blocks, np.int64)
    total = np.int64(0)
    for b in range(blocks):
        sums[b] = _sum(logits[b * BLOCK : (b + 1) * BLOCK], largest, temperature, least)
        total += sums[b]
    target = min(np.int64(uniform * np.float64(total)), total - 1)
    block = 0
    while block < blocks - 1 and target >= sums[block]:
        target -= sums[block]
        block += 1
    for i in range(block * BLOCK, len(logits)):
        target -= _weight(logits[i], largest, temperature, least)
        if target < 0:
            return i
    return 0


@inner
@no_type_check
def _largest(logits):  # pragma: no cover
    numbers, whole = pointer(logits), len(logits) // (4 * LANES) * (4 * LANES)
    top = logits[0]
    if whole:  # by four vectors, of which none waits for another
        a, b = load(numbers, 0), load(numbers, LANES)
        c, d = load(numbers, 2 * LANES), load(numbers, 3 * LANES)
        for i in range(4 * LANES, whole, 4 * LANES):
            a, b = larger(load(numbers, i), a), larger(load(numbers, i + LANES), b)
            c = larger(load(numbers, i + 2 * LANES), c)
            d = larger(load(numbers, i + 3 * LANES), d)
        top = largest_lane(larger(larger(a, b), larger(c, d)))
    for i in range(whole, len(logits)):
        top = max(top, logits[i])
    return top


@inner
@no_type_check
def _likeliest(logits, largest):  # pragma: no cover
    """The first of the largest, which is looked for in blocks, as those make vector code."""
    for start in range(0, len(logits), BLOCK):
        block = logits[start : start + BLOCK]
        found = 0
        for i in range(len(block)):
            found += block[i] == largest
        if found:
            for i in range(len(block)):
                if block[i] == largest:
                    return start + i
    return 0


@inner
@no_type_check
def _sample(row, logits, temperatures, least, uniform, tokens, rows, vocab):  # pragma: no cover
    own = singles(logits + 4 * row * vocab, vocab)
    largest, chosen = _largest(own), integers(tokens, rows)
    temperature = np.float64(0) if temperatures == 0 else doubles(temperatures, rows)[row]
    if temperature == 0:
        chosen[row] = _likeliest(own, largest)
    else:
        border = doubles(least, rows)[row], doubles(uniform, rows)[row]
        chosen[row] = _drawn(own, np.float64(largest), temperature, *border)


@parallel_kernel
@no_type_check
def _all(
    threads, logits, temperatures, least, uniform, tokens, rows, vocab
):  # fmt: skip  # pragma: no cover
    """All but the threads and sizes are addresses; without temperatures, 0, they are 0."""
    share_each(_sample, threads, rows, (logits, temperatures, least, uniform, tokens, rows, vocab))
