"""gated_delta_rule's states: a row's solved chunks, one after the other."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.delta_decays import tile_of
from hybridrt.kernels.triton.launch import jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.products import add_parts, parts_of
from hybridrt.kernels.triton.states import if_so, pages_of, tokens_of


@kernel(do_not_specialize=["first_row"])
@no_type_check
def run_chunks(
    v,  # [tokens, heads, VALUE_DIM]
    readers,  # [slots, heads // SHARED, parts, BLOCK_T, BLOCK_K]
    writers,  # [slots, heads // SHARED, parts, BLOCK_T, BLOCK_K]
    solved,  # [slots, heads, parts, BLOCK_T, BLOCK_T]
    from_start,  # [slots, heads, BLOCK_T], where not PER_CHANNEL
    to_end,  # [slots, heads, BLOCK_T], where not PER_CHANNEL
    whole,  # [slots, heads], or with BLOCK_K behind
    deltas,  # [slots, heads, parts, BLOCK_T, VALUE_ROOM]
    states,  # [slots, heads, BLOCK_K, VALUE_ROOM]
    ssm_state,  # [pages, heads, KEY_DIM, VALUE_DIM]
    pages,  # [rows]
    initial_pages,  # [rows]
    has_initial_state,  # [rows]
    cu_seqlens,  # [rows + 1]
    v_token,
    v_head,
    v_dim,
    s_page,
    s_head,
    s_k,
    s_v,
    first_row,
    SHARED: tl.constexpr,
    KEY_DIM: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_ROOM: tl.constexpr,
    SIDES: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Some value channels of a head's state through all chunks of a row; see `solve_chunks`.

    A chunk's corrections are left in `deltas`, and the state before it in `states`: what queries
    read is no work for one program after the other.
    """
    wait_for_earlier()
    PARTS: tl.constexpr = 2 if tl.float16 == SIDES else 1
    SUMS: tl.constexpr = tl.float64 if tl.float64 == SIDES else tl.float32
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(1)
    start, stop = tokens_of(row, cu_seqlens, False)
    initial, page = pages_of(row, pages, initial_pages, has_initial_state, False)
    c = tl.arange(0, BLOCK_K)
    i = tl.arange(0, BLOCK_T)
    here = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    d = here.to(tl.int64)
    fits = d < VALUE_DIM
    ssm_state += head * s_head + d * s_v
    from_there = ssm_state + initial * s_page
    wide = c.to(tl.int64)
    limit = if_so(initial >= 0, KEY_DIM)
    state = _channels_of(from_there, wide, s_k, limit, fits).to(SUMS)
    v += head * v_head
    slot = start // BLOCK_T + row
    of_keys = (i * BLOCK_K)[:, None] + c[None, :]
    of_values = (i * VALUE_ROOM)[:, None] + here[None, :]
    of_state = (c * VALUE_ROOM)[:, None] + here[None, :]
    between = (i * BLOCK_T)[:, None] + i[None, :]
    none = tl.zeros([BLOCK_T, BLOCK_V], SUMS)
    low: tl.constexpr = PARTS - 1
    DELTA_PARTS: tl.constexpr = 2 if deltas.dtype.element_ty == tl.bfloat16 else 1
    for first in range(start, stop, BLOCK_T):
        # Behind the last token all inputs are zeros, which leave a state as it is.
        at = slot * heads + head
        keys = (slot * (heads // SHARED) + head // SHARED) * PARTS * BLOCK_T * BLOCK_K
        reader = tl.load(readers + keys + of_keys)
        reader_low = tl.load(readers + keys + low * BLOCK_T * BLOCK_K + of_keys)
        matrix = at * PARTS * BLOCK_T * BLOCK_T
        solution = tl.load(solved + matrix + between)
        solution_low = tl.load(solved + matrix + low * BLOCK_T * BLOCK_T + between)
        value = tile_of(v, first + i, stop, v_token, d, v_dim, VALUE_DIM)
        value = value.to(tl.float32)
        # Asked for before it is used: none of the steps in between waits for it.
        decay = tl.load(whole + at * BLOCK_K + c)[:, None] if PER_CHANNEL else tl.load(whole + at)
        before = states + at * BLOCK_K * VALUE_ROOM + of_state
        tl.store(before, state.to(states.dtype.element_ty))
        if PARTS == 2:
            scale, back = _scales_of(tl.maximum(tl.max(tl.abs(state)), tl.max(tl.abs(value))))
            state *= scale
            value *= scale
        high, rest = parts_of(state, SIDES)
        answer = add_parts(reader, reader_low, high, rest, none)
        if not PER_CHANNEL:
            answer *= tl.load(from_start + at * BLOCK_T + i)[:, None]
        high, rest = parts_of(value - answer, SIDES)
        delta = add_parts(solution, solution_low, high, rest, none)
        place = deltas + at * DELTA_PARTS * BLOCK_T * VALUE_ROOM + of_values
        of_y = delta * back if PARTS == 2 else delta
        high, rest = parts_of(of_y, deltas.dtype.element_ty)
        tl.store(place, high)
        if DELTA_PARTS == 2:
            tl.store(place + BLOCK_T * VALUE_ROOM, rest)
        state *= decay
        if PER_CHANNEL:
            writer = tl.load(writers + keys + of_keys)
            high, rest = parts_of(delta, SIDES)
            writer_low = tl.load(writers + keys + low * BLOCK_T * BLOCK_K + of_keys)
        else:
            high, rest = parts_of(delta * tl.load(to_end + at * BLOCK_T + i)[:, None], SIDES)
            writer, writer_low = reader, reader_low
        writer, writer_low = tl.trans(writer), tl.trans(writer_low)
        state = add_parts(writer, writer_low, high, rest, state)
        if PARTS == 2:
            state *= back
        slot += 1
    to_there = ssm_state + page * s_page
    _store_channels(to_there, wide, s_k, if_so(page >= 0, KEY_DIM), fits, state)


@jit
@no_type_check
def _scales_of(peak):
    """A power of two that makes room for a chunk in float16, and the one that takes it back.

    From a peak of 64 to 128, corrections of 64 tokens whose keys have length 1 stay below 2^15.
    """
    exponent = tl.minimum(tl.maximum(260 - (peak.to(tl.int32, bitcast=True) >> 23), 1), 253)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    return scale, ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@jit
@no_type_check
def _channels_of(state, channel, stride, limit, fits):
    """Key channels below a limit of a state whose values `state` points to; zeros for others."""
    mask = (channel < limit)[:, None] & fits[None, :]
    return tl.load(state[None, :] + (channel * stride)[:, None], mask=mask, other=0.0)


@jit
@no_type_check
def _store_channels(state, channel, stride, limit, fits, tile):
    """The other way round."""
    mask = (channel < limit)[:, None] & fits[None, :]
    at = state[None, :] + (channel * stride)[:, None]
    tl.store(at, tile.to(state.dtype.element_ty), mask=mask)
