"""wkv in plain torch: all pairs of tokens in a chunk for prefill, the recurrence for decode."""

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.reference.states import prefill_states, read_states, store_states

CHUNK = 32  # the work inside a chunk grows with its square
_NOTHING = -1e30  # exp gives 0, whatever is added to it


def wkv(
    k: Float[Tensor, "tokens channels"],
    v: Float[Tensor, "tokens channels"],
    log_decay: Float32[Tensor, " channels"],
    bonus: Float32[Tensor, " channels"],
    numerator: Float[Tensor, "pages channels"],
    denominator: Float[Tensor, "pages channels"],
    peak: Float[Tensor, "pages channels"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Float[Tensor, "tokens channels"]:
    """See `hybridrt.kernels.wkv`."""
    y = torch.empty_like(v)
    k, v = k.float(), v.float()
    caches, n = (numerator, denominator, peak), batch.num_decodes
    if n:
        states = above, below, m = tuple(
            read_states(cache, pages[:n], torch.float32) for cache in caches
        )
        y[:n] = _step(k[:n], v[:n], log_decay, bonus, above, below, m)
        for cache, state in zip(caches, states, strict=True):
            store_states(cache, pages[:n], state)
    each = (prefill_states(c, pages, initial_pages, batch, torch.float32) for c in caches)
    # Strict, so that the three come to their ends, where they write.
    for (row, above), (_, below), (_, m) in zip(*each, strict=True):
        for start in range(row.start, row.stop, CHUNK):
            tokens = slice(start, min(start + CHUNK, row.stop))
            y[tokens] = _chunk(k[tokens], v[tokens], log_decay, bonus, above, below, m)
    return y


def _step(
    k: Float32[Tensor, "rows channels"],
    v: Float32[Tensor, "rows channels"],
    log_decay: Float32[Tensor, " channels"],
    bonus: Float32[Tensor, " channels"],
    above: Float32[Tensor, "rows channels"],
    below: Float32[Tensor, "rows channels"],
    m: Float32[Tensor, "rows channels"],
) -> Float32[Tensor, "rows channels"]:
    """One token of every row; the states are changed in place."""
    m.masked_fill_(below == 0, _NOTHING)
    highest = torch.maximum(m, k + bonus)
    kept, added = torch.exp(m - highest), torch.exp(k + bonus - highest)
    y = (kept * above + added * v) / (kept * below + added)
    highest = torch.maximum(m + log_decay, k)
    kept, added = torch.exp(m + log_decay - highest), torch.exp(k - highest)
    above.mul_(kept).add_(added * v)
    below.mul_(kept).add_(added)
    m.copy_(highest)
    return y


def _chunk(
    k: Float32[Tensor, "tokens channels"],
    v: Float32[Tensor, "tokens channels"],
    log_decay: Float32[Tensor, " channels"],
    bonus: Float32[Tensor, " channels"],
    above: Float32[Tensor, " channels"],
    below: Float32[Tensor, " channels"],
    m: Float32[Tensor, " channels"],
) -> Float32[Tensor, "tokens channels"]:
    """Some tokens of one sequence; the states are changed in place.

    The last row of exponents is of a token that would follow, so its sums are the states.
    """
    m.masked_fill_(below == 0, _NOTHING)
    t = torch.arange(len(k) + 1, device=k.device)
    ages = (t[:, None] - 1 - t[:-1])[..., None]  # [tokens + 1, tokens, 1]
    logs = (k + ages * log_decay).masked_fill_(ages < 0, -torch.inf)
    logs = torch.where(ages == -1, k + bonus, logs)
    of_state = m + t[:, None] * log_decay
    highest = torch.maximum(of_state, logs.amax(1))
    shares, kept = torch.exp(logs - highest[:, None]), torch.exp(of_state - highest)
    sums = kept * above + torch.einsum("tsc,sc->tc", shares, v)
    totals = kept * below + shares.sum(1)
    above.copy_(sums[-1])
    below.copy_(totals[-1])
    m.copy_(highest[-1])
    return sums[:-1] / totals[:-1]
