"""Joins what the splits of a context found."""

from typing import no_type_check

import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.kernels.triton.launch import (
    LOG2_E,
    block_of,
    cdiv,
    kernel,
    num_processors,
    wait_for_earlier,
)

_LEAST_SPLIT = 128  # tokens: below it a split costs more than it saves
_MOST_SPLITS = 64
_PROGRAMS_A_PROCESSOR = 2


def num_splits(q: Tensor, programs: int, most_tokens: int) -> int:
    """Into how many parts to cut contexts, so that there is work for the whole device.

    It follows from shapes, so that a captured graph has room for any contexts. All programs run at
    once: a few more than that would take as long again as those before them.
    """
    wanted = _PROGRAMS_A_PROCESSOR * num_processors(q.device) // programs
    return max(1, min(wanted, cdiv(most_tokens, _LEAST_SPLIT), _MOST_SPLITS))


def combine(
    parts: Float32[Tensor, "tokens heads splits dim"],
    logs: Float32[Tensor, "tokens heads splits"],
    sinks: Float[Tensor, " heads"] | None,
    out: Float[Tensor, "tokens heads dim"],
) -> None:
    """The softmax over all splits, from each one's own and the log of its denominator."""
    tokens, heads, splits, dim = parts.shape
    _combine[(tokens, heads)](
        parts,
        logs,
        sinks,
        out,
        *out.stride(),
        heads,
        SPLITS=splits,
        DIM=dim,
        HAS_SINKS=sinks is not None,
        BLOCK_S=block_of(splits, 1),
        BLOCK_D=block_of(dim),
    )


@kernel
@no_type_check
def _combine(
    parts,  # [tokens, heads, SPLITS, DIM]
    logs,  # [tokens, heads, SPLITS]
    sinks,  # [heads]
    out,  # [tokens, heads, DIM]
    out_token,
    out_head,
    out_dim,
    heads,
    SPLITS: tl.constexpr,
    DIM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    wait_for_earlier()
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    split, dim = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    at = (token * heads + head) * SPLITS + split
    log = tl.load(logs + at, mask=split < SPLITS, other=float("-inf"))
    largest = tl.max(log, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2_E
        largest = tl.maximum(largest, sink)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    weight = tl.exp2(log - largest)
    total = tl.sum(weight, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - largest)
    # A split that had no tokens has written nothing.
    there = (log > float("-inf"))[:, None] & (dim < DIM)[None, :]
    part = tl.load(parts + at[:, None] * DIM + dim[None, :], mask=there, other=0.0)
    result = tl.sum(part * weight[:, None], 0) / tl.where(total == 0, 1.0, total)
    target = out + token * out_token + head * out_head + dim.to(tl.int64) * out_dim
    tl.store(target, result.to(out.dtype.element_ty), mask=dim < DIM)
