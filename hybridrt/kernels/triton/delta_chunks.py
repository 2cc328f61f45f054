"""gated_delta_rule's states: a row's solved chunks, one after the other."""

from typing import no_type_check

import triton.language as tl

from hybridrt.kernels.triton.delta_decays import tile_of
from hybridrt.kernels.triton.launch import FLOAT32_DOT, jit, kernel, wait_for_earlier
from hybridrt.kernels.triton.products import add_product
from hybridrt.kernels.triton.states import if_so, pages_of, tokens_of


@kernel(do_not_specialize=["first_row"])
@no_type_check
def run_chunks(
    k,  # [tokens, heads // REPEATS, KEY_DIM]
    of_state,  # [slots, heads, BLOCK_T, KEY_DIM]
    of_values,  # [slots, heads, BLOCK_T, VALUE_DIM]
    to_end,  # [slots, heads, BLOCK_T], or with KEY_DIM behind, times the keys
    whole,  # [slots, heads], or with KEY_DIM behind
    states,  # [slots, heads, KEY_DIM, VALUE_DIM]
    ssm_state,  # [pages, heads, KEY_DIM, VALUE_DIM]
    pages,  # [rows]
    initial_pages,  # [rows]
    has_initial_state,  # [rows]
    cu_seqlens,  # [rows + 1]
    k_token,
    k_head,
    k_dim,
    s_page,
    s_head,
    s_k,
    s_v,
    first_row,
    REPEATS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HALF_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Some value channels of a head's state through all chunks of a row; see `solve_chunks`.

    A chunk's corrections are left in place of `of_values`, and the state before it in `states`:
    what queries read is no work for one program after the other.
    """
    wait_for_earlier()
    row, head = (first_row + tl.program_id(2)).to(tl.int64), tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(1)
    start, stop = tokens_of(row, cu_seqlens, False)
    initial, page = pages_of(row, pages, initial_pages, has_initial_state, False)
    # Halves of the key channels, as registers have no room for the parts of a wider product.
    c = tl.arange(0, HALF_K).to(tl.int64)
    e = HALF_K + c
    d = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    i = tl.arange(0, BLOCK_T)
    fits = d < VALUE_DIM
    ssm_state += head * s_head + d * s_v
    from_there = ssm_state + initial * s_page
    limit = if_so(initial >= 0, KEY_DIM)
    state = _channels_of(from_there, c, s_k, limit, fits).to(tl.float32)
    state_e = _channels_of(from_there, e, s_k, limit, fits).to(tl.float32)
    k += head // REPEATS * k_head
    slot = (start // BLOCK_T + row) * heads + head
    states += d
    for first in range(start, stop, BLOCK_T):
        # Behind the last token all inputs are zeros, which leave a state as it is.
        t = first + i
        in_slots = slot * BLOCK_T
        delta = _tokens_of(of_values + in_slots * VALUE_DIM, i, d, VALUE_DIM)
        of_c = _tokens_of(of_state + in_slots * KEY_DIM, i, c, KEY_DIM)
        of_e = _tokens_of(of_state + in_slots * KEY_DIM, i, e, KEY_DIM)
        if PER_CHANNEL:
            key = _tokens_of(to_end + in_slots * KEY_DIM, i, c, KEY_DIM)
            key_e = _tokens_of(to_end + in_slots * KEY_DIM, i, e, KEY_DIM)
        else:
            key = tile_of(k, t, stop, k_token, c, k_dim, KEY_DIM)
            key_e = tile_of(k, t, stop, k_token, e, k_dim, KEY_DIM)
        before = states + slot * KEY_DIM * VALUE_DIM
        _store_channels(before, c, VALUE_DIM, KEY_DIM, fits, state)
        _store_channels(before, e, VALUE_DIM, KEY_DIM, fits, state_e)
        delta = tl.dot(of_c, state, delta, input_precision=FLOAT32_DOT)
        delta = tl.dot(of_e, state_e, delta, input_precision=FLOAT32_DOT)
        at = of_values + in_slots * VALUE_DIM + (i * VALUE_DIM)[:, None] + d[None, :]
        tl.store(at, delta, mask=fits[None, :])
        if PER_CHANNEL:
            of_slot = whole + slot * KEY_DIM
            state *= tl.load(of_slot + c, mask=c < KEY_DIM, other=0.0)[:, None]
            state_e *= tl.load(of_slot + e, mask=e < KEY_DIM, other=0.0)[:, None]
        else:
            decay = tl.load(whole + slot)
            state *= decay
            state_e *= decay
            delta *= tl.load(to_end + in_slots + i)[:, None]
        state = add_product(tl.trans(key), delta, state, 3)
        state_e = add_product(tl.trans(key_e), delta, state_e, 3)
        slot += heads
    to_there = ssm_state + page * s_page
    limit = if_so(page >= 0, KEY_DIM)
    _store_channels(to_there, c, s_k, limit, fits, state)
    _store_channels(to_there, e, s_k, limit, fits, state_e)


@jit
@no_type_check
def _tokens_of(part, i, channel, SIZE: tl.constexpr):
    """Some channels of a chunk's tokens, of which a slot has room for all."""
    mask = (channel < SIZE)[None, :]
    return tl.load(part + (i * SIZE)[:, None] + channel[None, :], mask=mask, other=0.0)


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
