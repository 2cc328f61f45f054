"""gated_delta_rule in plain torch: matrix products for prefill, the recurrence for decode."""

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from hybridrt.batch import Rows
from hybridrt.kernels.reference.states import prefill_states, read_states, store_states

LONGEST_CHUNK = 32  # a power of two; the work inside a chunk grows with its square
CHUNKS_AT_ONCE = 4  # what they need beside their inputs stays in a CPU's cache
SMALLEST_LOG = -80.0  # exp gives 2e-35: nothing beside 1, and no slow subnormal number


def gated_delta_rule(
    q: Float[Tensor, "tokens key_heads head_k_dim"],
    k: Float[Tensor, "tokens key_heads head_k_dim"],
    v: Float[Tensor, "tokens heads head_v_dim"],
    g: Float[Tensor, "tokens heads *head_k_dim"],
    beta: Float[Tensor, "tokens heads"],
    ssm_state: Float[Tensor, "pages heads head_k_dim head_v_dim"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Float[Tensor, "tokens heads head_v_dim"]:
    """See `hybridrt.kernels.gated_delta_rule`."""
    y = torch.empty_like(v)
    g = g.view(*beta.shape, -1)  # one for all of a head's key channels, or one for each
    q, k, v, g, beta = (part.float() for part in (q, k, v, g, beta))
    n = batch.num_decodes
    if n:
        state = read_states(ssm_state, pages[:n], torch.float32)
        y[:n] = _step(q[:n], k[:n], v[:n], g[:n], beta[:n], state)
        store_states(ssm_state, pages[:n], state)
    for row, state in prefill_states(ssm_state, pages, initial_pages, batch, torch.float32):
        for start in range(row.start, row.stop, CHUNKS_AT_ONCE * LONGEST_CHUNK):
            t = slice(start, min(start + CHUNKS_AT_ONCE * LONGEST_CHUNK, row.stop))
            y[t] = _scan(q[t], k[t], v[t], g[t], beta[t], state)
    return y


def _step(
    q: Float[Tensor, "rows key_heads k"],
    k: Float[Tensor, "rows key_heads k"],
    v: Float[Tensor, "rows heads v"],
    g: Float[Tensor, "rows heads k_or_1"],
    beta: Float[Tensor, "rows heads"],
    state: Float[Tensor, "rows heads k v"],
) -> Float[Tensor, "rows heads v"]:
    """One token of every row; `state` is changed in place."""
    repeats = v.shape[1] // k.shape[1]
    q, k = (part.repeat_interleave(repeats, dim=1)[:, :, None] for part in (q, k))
    state.mul_(torch.exp(g)[..., None])
    correction = beta[..., None, None] * (v[:, :, None] - torch.matmul(k, state))
    state.addcmul_(k.transpose(2, 3), correction)
    return torch.matmul(q, state)[:, :, 0]


def _scan(
    q: Float[Tensor, "tokens key_heads k"],
    k: Float[Tensor, "tokens key_heads k"],
    v: Float[Tensor, "tokens heads v"],
    g: Float[Tensor, "tokens heads k_or_1"],
    beta: Float[Tensor, "tokens heads"],
    state: Float[Tensor, "heads k v"],
) -> Float[Tensor, "tokens heads v"]:
    """Some tokens of one sequence; `state` is changed in place.

    What token i corrects, `delta_i = beta_i (v_i - S^T k_i)`, depends on the corrections
    before it in its chunk. Written out, that is a triangular system, so all of a chunk's
    follow from its values, its keys and the state before it (arXiv 2412.06464, section 3.3).

    Below, c counts chunks, h key heads, r the heads of each, l tokens in a chunk. Padding
    tokens have beta = 0, k = 0 and g = 0: they neither decay a state nor add to it.
    """
    tokens, heads = k.shape[:2]
    q, k, v, g, beta = (_chunks(part, heads) for part in (q, k, v, g, beta[..., None]))
    # In float64: a token that forgets everything takes a sum to -1,000 and beyond, where
    # float32 has no digits left for the small differences between the tokens behind it.
    sums = g.double().cumsum(-2)
    to_end = _exp(sums[..., -1:, :] - sums)
    sees, overlaps = _products(torch.stack([q, k]), k, sums)
    from_start = _exp(sums)
    system = torch.cat([beta * v, beta * k * from_start], dim=-1)
    solved = torch.linalg.solve_triangular(beta * overlaps, system, upper=False, unitriangular=True)
    of_values, of_state = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    q, k, decay = q * from_start, (k * to_end).mT, from_start[..., -1, :, None]

    state = state.view(heads, -1, *state.shape[1:])
    ys: list[Tensor] = []
    for c in range(len(v)):
        delta = of_values[c] - of_state[c] @ state
        ys.append(q[c] @ state + sees[c] @ delta)
        state.mul_(decay[c]).add_(k[c] @ delta)
    return torch.stack(ys).permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1, 2)[:tokens]


def _chunks(part: Float[Tensor, "tokens heads d"], heads: int) -> Float[Tensor, "c h r l d"]:
    length = min(LONGEST_CHUNK, 1 << (part.shape[0] - 1).bit_length())
    part = pad(part, [0, 0, 0, 0, 0, -part.shape[0] % length])
    by_chunk = part.unflatten(1, (heads, -1)).unflatten(0, (-1, length))
    return by_chunk.permute(0, 2, 3, 1, 4)


def _exp(logs: Float64[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return logs.float().clamp_(min=SMALLEST_LOG).exp_()


def _products(
    a: Float[Tensor, "two c h 1 l k"],
    b: Float[Tensor, "c h 1 l k"],
    sums: Float64[Tensor, "c h r l k_or_1"],
) -> Float[Tensor, "two c h r l l"]:
    """`a_i . (decay from behind token j up to token i) b_j`; 0 for j > i."""
    if sums.shape[-1] > 1:
        return _products_by_halves(a, b, sums)
    decay = _exp(sums - sums.mT).tril_()
    return torch.matmul(a, b.mT) * decay


def _products_by_halves(
    a: Float[Tensor, "two c h 1 l k"],
    b: Float[Tensor, "c h 1 l k"],
    sums: Float64[Tensor, "c h r l k"],
) -> Float[Tensor, "two c h r l l"]:
    """`_products` with a decay for each channel, which no product of two matrices has.

    From a token of the first half of a chunk to one of the second, decays split at the
    middle, and there the product has it: both parts are at most 1, so none overflows. What
    is left are two chunks of half the length.
    """
    length = sums.shape[-2]
    b = b.expand_as(sums)
    out = torch.diag_embed((a * b).sum(-1))
    half = length // 2
    while half:
        x, y, logs = (part.unflatten(-2, (-1, 2 * half)) for part in (a, b, sums))
        middle = logs[..., half - 1 : half, :]
        late = x[..., half:, :] * _exp(logs[..., half:, :] - middle)
        early = y[..., :half, :] * _exp(middle - logs[..., :half, :])
        blocks = out.unflatten(-1, (-1, 2 * half)).unflatten(-3, (-1, 2 * half))
        on_diagonal = blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        on_diagonal[..., half:, :half] = late @ early.mT
        half //= 2
    return out
