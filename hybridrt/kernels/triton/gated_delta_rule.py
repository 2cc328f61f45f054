"""gated_delta_rule in Triton: states go from chunk to chunk, all else is done for all at once."""

from functools import partial

import torch
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.triton.delta_answers import answer_chunks
from hybridrt.kernels.triton.delta_chunks import run_chunks
from hybridrt.kernels.triton.delta_overlaps import weigh_chunks
from hybridrt.kernels.triton.delta_solve import solve_chunks
from hybridrt.kernels.triton.delta_step import run_step
from hybridrt.kernels.triton.launch import block_of, cdiv
from hybridrt.kernels.triton.states import prefill_turns

# As long for every row, so that a row gives the same bits in any company.
CHUNK = 64
# Value channels of a program with a state, and the most of one without. On an H200 some prompts
# came out wrong with tiles of 16, as in paged_attention.py.
_VALUES, _ANSWERS = 32, 128
_CHANNELS, _SOLVED = 64, 32  # key channels of a product that goes through them
_WEIGHED, _NEAR, _WEIGHERS = 16, 16, 1  # with a decay a channel: channels, tokens, warps
_SOLVERS, _RUNNERS = 2, 4  # warps; of products of 32 by 32 tokens more than two do the same
_AHEAD = 3  # stages of chunks on the way, as shared memory has room


def gated_delta_rule(
    q: Float[Tensor, "tokens key_heads head_k_dim"],
    k: Float[Tensor, "tokens key_heads head_k_dim"],
    v: Float[Tensor, "tokens heads head_v_dim"],
    g: Float[Tensor, "tokens heads"] | Float[Tensor, "tokens heads head_k_dim"],
    beta: Float[Tensor, "tokens heads"],
    ssm_state: Float[Tensor, "pages heads head_k_dim head_v_dim"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Float[Tensor, "tokens heads head_v_dim"]:
    """See `hybridrt.kernels.gated_delta_rule`. Prefills take q and k in float32."""
    y = torch.empty_like(v)
    heads, key_dim, value_dim = ssm_state.shape[1:]
    g_strides = g.stride() if g.dim() == 3 else (*g.stride(), 0)
    repeats = heads // k.shape[1]
    sizes = {"KEY_DIM": key_dim, "PER_CHANNEL": g.dim() == 3}
    block_k = block_of(key_dim)
    read_strides = (*q.stride(), *k.stride(), *g_strides)
    value_strides = (*v.stride(), *ssm_state.stride(), *y.stride())
    n, num_rows = batch.num_decodes, batch.num_rows
    if n:
        run_step[(cdiv(value_dim, _VALUES), heads, n)](
            *(q, k, g, beta, v, ssm_state, y, pages),
            *(*read_strides, *beta.stride(), *value_strides),
            **sizes,
            REPEATS=repeats,
            VALUE_DIM=value_dim,
            BLOCK_K=block_k,
            BLOCK_V=_VALUES,
        )
    if n == num_rows:
        return y
    # As layers give them. In bfloat16, at a model's sizes, an H200 accessed memory out of bounds.
    q, k = q.float(), k.float()
    # What needs no state comes first, for chunks of all rows at once, those that follow too; and
    # what no state needs comes last. A row's chunks have slots from `start // CHUNK + row` on:
    # no row's end behind where those of the next begin.
    slots, channels = len(v) // CHUNK + num_rows, g.shape[2:]
    # Sides of products are kept in two parts of float16, see `parts_of`, and what queries read with
    # the digits that y has; float16 has no room for large ones.
    in_full = v.dtype == torch.float32
    parts, side, sides = (
        (1, torch.float32, tl.float64) if in_full else (2, torch.float16, tl.float16)
    )
    kept = torch.bfloat16 if v.dtype == torch.bfloat16 else torch.float32
    wide_v = min(_ANSWERS, block_of(value_dim, _VALUES))
    value_room = cdiv(value_dim, wide_v) * wide_v
    key_heads = heads if channels else k.shape[1]
    room = partial(torch.empty, dtype=kept, device=v.device)
    keys = partial(room, slots, key_heads, parts, CHUNK, block_k, dtype=side)
    readers = keys()
    writers = keys() if channels else readers
    exact = torch.float64 if in_full else side
    solved = room(slots, heads, parts, CHUNK, CHUNK, dtype=exact)
    deltas = room(slots, heads, 2 if kept == torch.bfloat16 else 1, CHUNK, value_room)
    states = room(slots, heads, block_k, value_room)
    room = partial(room, slots, heads, dtype=torch.float32)
    decays = (None, None, room(block_k)) if channels else (room(CHUNK), room(CHUNK), room())
    overlaps = seen = None
    longest = cdiv(int(batch.query_lens[n:].max()), CHUNK)
    if channels:
        seen = room(CHUNK, CHUNK)
        overlaps = room(CHUNK, CHUNK, dtype=torch.float64 if in_full else torch.float32)
        weigh_chunks[(longest * (CHUNK // _NEAR), heads, num_rows - n)](
            *(q, k, g, readers, writers, decays[2], overlaps, seen, batch.cu_seqlens_q),
            *read_strides,
            n,
            REPEATS=repeats,
            KEY_DIM=key_dim,
            KEY_ROOM=block_k,
            SIDES=sides,
            BLOCK_K=min(_WEIGHED, block_k),
            BLOCK_T=_NEAR,
            BLOCKS=CHUNK // _NEAR,
            num_warps=_WEIGHERS,
        )
    solve_chunks[(longest, k.shape[1], num_rows - n)](
        *(k, g, beta, overlaps, readers, solved, *decays, batch.cu_seqlens_q),
        *(*k.stride(), *g_strides[:2], *beta.stride()),
        n,
        **sizes,
        REPEATS=repeats,
        KEY_ROOM=block_k,
        SIDES=sides,
        BLOCK_K=min(_SOLVED, block_k),
        HALF=CHUNK // 2,
        num_warps=_SOLVERS,
    )
    for first, count, _ in prefill_turns(batch):
        run_chunks.in_turn((value_room // _VALUES, heads, count))(
            *(v, readers, writers, solved, *decays, deltas, states, ssm_state),
            *(pages, initial_pages, batch.has_initial_state, batch.cu_seqlens_q),
            *(*v.stride(), *ssm_state.stride()),
            first,
            **sizes,
            SIDES=sides,
            SHARED=heads // key_heads,
            VALUE_DIM=value_dim,
            VALUE_ROOM=value_room,
            BLOCK_K=block_k,
            BLOCK_V=_VALUES,
            BLOCK_T=CHUNK,
            num_warps=_RUNNERS,
            num_stages=1 if block_k > 128 else 2 if channels else _AHEAD,
        )
    answer_chunks[(longest * (value_room // wide_v), heads, num_rows - n)](
        *(q, k, g, deltas, states, seen, y, batch.cu_seqlens_q),
        *(*q.stride(), *k.stride(), *g_strides, *y.stride()),
        n,
        **sizes,
        REPEATS=repeats,
        KEY_ROOM=block_k,
        VALUE_DIM=value_dim,
        VALUE_ROOM=value_room,
        BLOCK_K=min(_CHANNELS, block_k),
        BLOCK_V=wide_v,
        BLOCK_T=CHUNK,
        num_warps=4,
        num_stages=2,
    )
    return y
