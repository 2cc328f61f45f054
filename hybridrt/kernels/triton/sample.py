"""The draw of the next token: each row by one program; the likeliest alone by many."""

from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from hybridrt.kernels.reference.sample import ONE
from hybridrt.kernels.triton.launch import (
    block_of,
    cdiv,
    jit,
    kernel,
    next_power_of_2,
    wait_for_earlier,
)

MOST = 4096  # logits at a time
_ONE = tl.constexpr(ONE)


def likeliest(logits: Float[Tensor, "rows vocab"]) -> Int64[Tensor, " rows"]:
    """See `hybridrt.kernels.sample.likeliest`."""
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        block = min(MOST, block_of(vocab))
        parts = cdiv(vocab, block)
        largest = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
        where = torch.empty(rows, parts, dtype=torch.int64, device=logits.device)
        _find_largest[(rows, parts)](
            logits, largest, where, *logits.stride(), vocab, BLOCK=block, num_warps=8
        )
        _choose_part[(rows,)](
            largest, where, tokens, PARTS=parts, BLOCK=block_of(parts, 1), num_warps=1
        )
    return tokens


def sample(
    logits: Float[Tensor, "rows vocab"],
    temperature: Float64[Tensor, " rows"],
    least: Float64[Tensor, " rows"],
    uniform: Float64[Tensor, " rows"],
) -> Int64[Tensor, " rows"]:
    """See `hybridrt.kernels.reference.sample`."""
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        block = min(MOST, block_of(vocab))
        _sample[(rows,)](
            logits,
            torch.stack((temperature, least, uniform)).to(logits.device, non_blocking=True),
            tokens,
            *logits.stride(),
            rows,
            vocab,
            BLOCK=block,
            BLOCKS=next_power_of_2(cdiv(vocab, block)),
            num_warps=8,
        )
    return tokens


@kernel
@no_type_check
def _find_largest(
    logits,  # [rows, vocab]
    largest,  # float32 [rows, parts], contiguous
    where,  # the same: the first token that has it
    l_row,
    l_token,
    vocab,
    BLOCK: tl.constexpr,
):
    wait_for_earlier()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    value, token = _likeliest_of(logits + row * l_row, l_token, vocab, part, BLOCK)
    at = row * tl.num_programs(1) + part
    tl.store(largest + at, value)
    tl.store(where + at, token)


@kernel
@no_type_check
def _choose_part(
    largest,  # [rows, PARTS], contiguous
    where,
    tokens,  # [rows]
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK)
    at, there = row * PARTS + part, part < PARTS
    value = tl.load(largest + at, mask=there, other=float("-inf"))
    first = tl.min(tl.where((value == tl.max(value, 0)) & there, part, PARTS - 1), 0)
    tl.store(tokens + row, tl.load(where + row * PARTS + first))


@kernel
@no_type_check
def _sample(
    logits,  # [rows, vocab]
    numbers,  # float64 [3, rows]: temperature, the logarithm of min_p, the uniform number
    tokens,  # [rows]
    l_row,
    l_token,
    rows,
    vocab,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,  # a power of two
):
    wait_for_earlier()
    row = tl.program_id(0).to(tl.int64)
    logits += row * l_row
    largest, likeliest = _likeliest(logits, l_token, vocab, BLOCK)
    temperature = tl.load(numbers + row)
    if temperature == 0:
        tl.store(tokens + row, likeliest)
    else:
        least = tl.load(numbers + rows + row)
        given = (logits, l_token, vocab, largest.to(tl.float64), temperature, least)
        number = tl.arange(0, BLOCKS)
        sums = tl.zeros((BLOCKS,), tl.int64)
        for b in range(0, tl.cdiv(vocab, BLOCK)):
            sums = tl.where(number == b, tl.sum(_weights(given, b, BLOCK), 0), sums)
        total = tl.sum(sums, 0)
        target = (tl.load(numbers + 2 * rows + row) * total.to(tl.float64)).to(tl.int64)
        target = tl.minimum(target, total - 1)
        # The blocks whose sum is reached before the target are passed.
        up_to = tl.cumsum(sums, 0)
        passed = tl.sum((up_to <= target).to(tl.int32), 0)
        before = tl.sum(tl.where(number < passed, sums, 0), 0)
        inside = before + tl.cumsum(_weights(given, passed, BLOCK), 0)
        drawn = passed * BLOCK + tl.sum((inside <= target).to(tl.int32), 0)
        tl.store(tokens + row, drawn.to(tl.int64))


@jit
@no_type_check
def _likeliest(logits, l_token, vocab, BLOCK: tl.constexpr):
    """The largest logit, and the first token that has it."""
    largest, likeliest = tl.full((), float("-inf"), tl.float32), tl.zeros((), tl.int64)
    for b in range(0, tl.cdiv(vocab, BLOCK)):
        here, first = _likeliest_of(logits, l_token, vocab, b, BLOCK)
        likeliest = tl.where(here > largest, first, likeliest)
        largest = tl.maximum(here, largest)
    return largest, likeliest


@jit
@no_type_check
def _likeliest_of(logits, l_token, vocab, b, BLOCK: tl.constexpr):
    """The same of one block."""
    token = b * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    fits = token < vocab
    x = tl.load(logits + token * l_token, mask=fits, other=float("-inf")).to(tl.float32)
    largest = tl.max(x, 0)
    # Where all are no numbers it is the block's first, so that it is a token in any case.
    return largest, tl.min(tl.where((x == largest) & fits, token, vocab - 1), 0)


@jit
@no_type_check
def _weights(given, b, BLOCK: tl.constexpr):
    """Of the tokens of a block; see the contract."""
    logits, l_token, vocab, largest, temperature, least = given
    token = b * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    fits = token < vocab
    x = tl.load(logits + token * l_token, mask=fits, other=float("-inf")).to(tl.float64)
    below = (x - largest) / temperature
    return tl.where((below >= least) & fits, tl.exp(below) * _ONE, 0.0).to(tl.int64)
