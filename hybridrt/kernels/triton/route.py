"""route in Triton: logits in parts, and the choice by a program for each token."""

from typing import no_type_check

import torch
import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.reference.route import Routing
from hybridrt.kernels.triton.gates import sigmoid
from hybridrt.kernels.triton.launch import (
    FLOAT32_DOT,
    block_of,
    cdiv,
    jit,
    kernel,
    next_power_of_2,
    row_strides,
    wait_for_earlier,
)

FEW_TOKENS = 64
"""For more, torch's product of float32 is worth its calls."""

EXPERTS = 16  # of a program's logits
PARTS = 128  # programs of logits for each 16 tokens, if inputs are enough
INPUTS = 512  # bytes of a row at a time
ONE_WARP = 512  # experts that a warp chooses from

_NO_KEY, _LEAST = tl.constexpr(-(1 << 63)), tl.constexpr(-(1 << 31))
_MANY = tl.constexpr(1 << 20)  # more than there are experts


def route(
    x: Float[Tensor, "tokens hidden"],
    weight: Float[Tensor, "experts hidden"],
    correction_bias: Float32[Tensor, " experts"] | None,
    routing: Routing,
) -> tuple[Int64[Tensor, "tokens top_k"], Float32[Tensor, "tokens top_k"]]:
    """See `hybridrt.kernels.route`. Of equal experts the first is chosen."""
    (tokens, _), experts = x.shape, len(weight)
    ids = torch.empty(tokens, routing.top_k, dtype=torch.int64, device=x.device)
    weights = torch.empty(tokens, routing.top_k, dtype=torch.float32, device=x.device)
    if tokens == 0:
        return ids, weights
    logits = _parts_of_logits(x, weight) if tokens <= FEW_TOKENS else _logits(x, weight)[None]
    size = experts // routing.n_group
    groups, in_group = (next_power_of_2(n) for n in (routing.n_group, size))
    _choose[(tokens,)](
        logits,
        correction_bias,
        ids,
        weights,
        *logits.stride(),
        *row_strides(correction_bias, 1),
        size,
        routing.eps,
        routing.scale,
        routing.outside,
        PARTS=len(logits),
        TOP_K=routing.top_k,
        SOFTMAX=routing.scores == "softmax",
        NORMED=routing.normed,
        GROUPS=routing.n_group,
        TOPK_GROUP=routing.topk_group,
        TOP2=routing.group_score == "top2",
        BLOCK_G=groups,
        BLOCK_E=in_group,
        num_warps=max(1, min(8, groups * in_group // ONE_WARP)),
    )
    return ids, weights


def _logits(
    x: Float[Tensor, "tokens hidden"], weight: Float[Tensor, "experts hidden"]
) -> Float32[Tensor, "tokens experts"]:
    """By torch; narrow numbers aren't widened before, as their products are exact in float32."""
    is_narrow = x.dtype == weight.dtype and x.itemsize == 2
    if is_narrow and x.is_cuda and hasattr(torch.ops.aten.mm, "dtype"):
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return F.linear(x.float(), weight.float())


def _parts_of_logits(
    x: Float[Tensor, "tokens hidden"], weight: Float[Tensor, "experts hidden"]
) -> Float32[Tensor, "parts tokens experts"]:
    """The same split by inputs. How doesn't hang on the tokens, so that neither do the bits."""
    (tokens, hidden), experts = x.shape, len(weight)
    tiles = cdiv(experts, EXPERTS)
    block = min(block_of(hidden), INPUTS // max(x.itemsize, weight.itemsize))
    blocks = cdiv(hidden, block)
    span = cdiv(blocks, max(1, min(blocks, PARTS // tiles))) * block
    parts = cdiv(hidden, span)
    out = torch.empty(parts, tokens, experts, dtype=torch.float32, device=x.device)
    _multiply[(tiles, parts, cdiv(tokens, 16))](
        x,
        weight,
        out,
        *x.stride(),
        *weight.stride(),
        tokens,
        experts,
        hidden,
        span,
        IS_FLOAT32=max(x.itemsize, weight.itemsize) > 2 or x.dtype != weight.dtype,
        BLOCK_E=EXPERTS,
        BLOCK_K=block,
        num_warps=4,
        num_stages=3,
    )
    return out


@kernel
@no_type_check
def _multiply(
    x,  # [tokens, hidden]
    weight,  # [experts, hidden]
    out,  # float32 [parts, tokens, experts], contiguous
    x_token,
    x_dim,
    w_expert,
    w_dim,
    tokens,
    experts,
    hidden,
    span,
    IS_FLOAT32: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    wait_for_earlier()
    part = tl.program_id(1).to(tl.int64)
    expert = tl.program_id(0).to(tl.int64) * BLOCK_E + tl.arange(0, BLOCK_E)
    token = tl.program_id(2).to(tl.int64) * 16 + tl.arange(0, 16)
    total = tl.zeros([16, BLOCK_E], tl.float32)
    for first in range(0, span, BLOCK_K):
        k = part * span + first + tl.arange(0, BLOCK_K)
        seen = (token < tokens)[:, None] & (k < hidden)[None, :]
        there = (expert < experts)[None, :] & (k < hidden)[:, None]
        given = tl.load(x + (token * x_token)[:, None] + (k * x_dim)[None, :], mask=seen, other=0.0)
        factor = tl.load(
            weight + (expert * w_expert)[None, :] + (k * w_dim)[:, None], mask=there, other=0.0
        )
        if IS_FLOAT32:
            given, factor = given.to(tl.float32), factor.to(tl.float32)
        total = tl.dot(given, factor, total, input_precision=FLOAT32_DOT)
    at = out + ((part * tokens + token) * experts)[:, None] + expert[None, :]
    tl.store(at, total, mask=(token < tokens)[:, None] & (expert < experts)[None, :])


@jit
@no_type_check
def _ordered(values):
    """Integers in the order of float32s, NaN the largest."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@jit
@no_type_check
def _keys(values, numbers, there):
    """The same of 64 bits, no two equal: of equal values the first has the larger."""
    ordered = _ordered(values).to(tl.int64)
    return tl.where(there, ordered * (1 << 32) + (0x7FFFFFFF - numbers), _NO_KEY)


@jit
@no_type_check
def _best_one_by_one(keys, COUNT: tl.constexpr):
    """The places of the COUNT largest keys, the largest first; COUNT for others."""
    place = tl.full(keys.shape, COUNT, tl.int32)
    for j in range(COUNT):
        is_next = keys == tl.max(keys)
        place = tl.where(is_next, j, place)
        keys = tl.where(is_next, _NO_KEY, keys)
    return place


@jit
@no_type_check
def _best(values, numbers, there, COUNT: tl.constexpr):
    """The places of the COUNT largest values, as `_keys` has their order; COUNT for others.

    First by the values alone, of 32 bits, whose maximum a warp has in one instruction: they are
    in order if none of them is there twice.
    """
    ordered = tl.where(there, _ordered(values), _LEAST)
    place = tl.zeros(ordered.shape, tl.int32)
    largest = tl.max(ordered)
    for _ in range(COUNT):
        is_less = ordered < largest
        place += is_less.to(tl.int32)
        largest = tl.max(tl.where(is_less, ordered, _LEAST))
    # So many are found, and one of them in the last place: so one is in each.
    found = tl.where(place < COUNT, 1, 0) + tl.where(place == COUNT - 1, _MANY, 0)
    if tl.sum(found) != COUNT + _MANY:
        place = _best_one_by_one(_keys(values, numbers, there), COUNT)
    return place


@kernel
@no_type_check
def _choose(
    logits,  # float32 [PARTS, tokens, experts]
    bias,  # float32 [experts]; None: there is none
    ids,  # [tokens, TOP_K], contiguous
    weights,  # float32, the same
    l_part,
    l_token,
    l_expert,
    b_expert,
    size,  # experts of a group
    eps,
    scale,
    outside,
    PARTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SOFTMAX: tl.constexpr,
    NORMED: tl.constexpr,
    GROUPS: tl.constexpr,
    TOPK_GROUP: tl.constexpr,
    TOP2: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    wait_for_earlier()
    token = tl.program_id(0).to(tl.int64)
    group, member = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_E)
    expert = group[:, None].to(tl.int64) * size + member[None, :]
    there = (group < GROUPS)[:, None] & (member < size)[None, :]
    at = logits + token * l_token + expert * l_expert
    score = tl.load(at, mask=there, other=0.0)
    for part in tl.static_range(1, PARTS):
        score += tl.load(at + part * l_part, mask=there, other=0.0)
    if SOFTMAX:
        largest = tl.max(tl.where(there, score, float("-inf")))
        score = tl.exp(tl.where(there, score - largest, float("-inf")))
        score = score / tl.sum(score)
    else:
        score = sigmoid(score)
    merit = score
    if bias is not None:
        merit += tl.load(bias + expert * b_expert, mask=there, other=0.0)
    if GROUPS > 1:
        keys = _keys(merit, expert, there)
        first = keys == tl.max(keys, 1)[:, None]
        best = tl.sum(tl.where(first, merit, 0.0), 1)
        if TOP2:
            rest = tl.where(there & ~first, merit, float("-inf"))
            best += tl.max(rest, 1)
        place = _best(best, group, group < GROUPS, TOPK_GROUP)
        merit = tl.where((place < TOPK_GROUP)[:, None], merit, outside)
    place = _best(merit, expert, there, TOP_K)
    chosen = there & (place < TOP_K)
    if GROUPS > 1 and bias is None:
        # The best groups may have fewer experts than are asked for.
        score = tl.where(tl.abs(merit) == float("inf"), 0.0, score)
    factor = scale
    if NORMED:
        factor = scale / (tl.sum(tl.where(chosen, score, 0.0)) + eps)
    tl.store(ids + token * TOP_K + place, expert, mask=chosen)
    tl.store(weights + token * TOP_K + place, score * factor, mask=chosen)
