"""mlstm in plain torch: matrix products for prefill, the recurrence for decode."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.reference.states import prefill_states, read_states, store_states

CHUNK = 32  # the work inside a chunk grows with its square


class _Inputs(NamedTuple):
    """Of some tokens, in float32."""

    q: Float32[Tensor, "tokens heads k"]
    k: Float32[Tensor, "tokens heads k"]
    v: Float32[Tensor, "tokens heads v"]
    log_input: Float32[Tensor, "tokens heads"]
    log_forget: Float32[Tensor, "tokens heads"]

    def at(self, tokens: slice) -> "_Inputs":
        return _Inputs(*(part[tokens] for part in self))


def mlstm(
    q: Float[Tensor, "tokens heads head_k_dim"],
    k: Float[Tensor, "tokens heads head_k_dim"],
    v: Float[Tensor, "tokens heads head_v_dim"],
    log_input: Float32[Tensor, "tokens heads"],
    log_forget: Float32[Tensor, "tokens heads"],
    memory: Float[Tensor, "pages heads head_k_dim head_v_dim"],
    normaliser: Float[Tensor, "pages heads head_k_dim"],
    peak: Float[Tensor, "pages heads"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    eps: float,
) -> Float[Tensor, "tokens heads head_v_dim"]:
    """See `hybridrt.kernels.mlstm`."""
    y = torch.empty_like(v)
    inputs = _Inputs(q.float(), k.float(), v.float(), log_input, log_forget)
    caches, n = (memory, normaliser, peak), batch.num_decodes
    if n:
        states = c, norm, m = tuple(
            read_states(cache, pages[:n], torch.float32) for cache in caches
        )
        y[:n] = _step(inputs.at(slice(n)), c, norm, m, eps)
        for cache, state in zip(caches, states, strict=True):
            store_states(cache, pages[:n], state)
    each = (prefill_states(c, pages, initial_pages, batch, torch.float32) for c in caches)
    # Strict, so that the three come to their ends, where they write.
    for (row, c), (_, norm), (_, m) in zip(*each, strict=True):
        for start in range(row.start, row.stop, CHUNK):
            tokens = slice(start, min(start + CHUNK, row.stop))
            y[tokens] = _chunk(inputs.at(tokens), c, norm, m, eps)
    return y


def _step(
    x: _Inputs,
    c: Float32[Tensor, "rows heads k v"],
    n: Float32[Tensor, "rows heads k"],
    m: Float32[Tensor, "rows heads"],
    eps: float,
) -> Float32[Tensor, "rows heads v"]:
    """One token of every row; the states are changed in place."""
    highest = torch.maximum(x.log_forget + m, x.log_input)
    kept = torch.exp(x.log_forget + m - highest)[..., None]
    added = torch.exp(x.log_input - highest)[..., None] * x.k
    m.copy_(highest)
    n.mul_(kept).add_(added)
    c.mul_(kept[..., None]).add_(added[..., None] * x.v[:, :, None])
    length = torch.maximum((x.q * n).sum(-1).abs(), torch.exp(-m))
    return torch.matmul(x.q[:, :, None], c)[:, :, 0] / (length + eps)[..., None]


def _chunk(
    x: _Inputs,
    c: Float32[Tensor, "heads k v"],
    n: Float32[Tensor, "heads k"],
    m: Float32[Tensor, " heads"],
    eps: float,
) -> Float32[Tensor, "tokens heads v"]:
    """Some tokens of one sequence; the states are changed in place.

    Token s counts for token t by `exp(sums[t] - sums[s] + log_input[s])`, where `sums` are those
    of the logarithms of what is kept; the state before the chunk by `exp(sums[t] + m)`. All are
    divided by the `exp` of the largest, which is m at t.
    """
    q, k, v = (part.transpose(0, 1) for part in (x.q, x.k, x.v))
    # In float64: their differences are small where the sums are not.
    sums = x.log_forget.double().cumsum(0).mT
    logs = (sums[:, :, None] - sums[:, None] + x.log_input.double().mT[:, None]).float()
    before = torch.ones(logs.shape[1:], dtype=torch.bool, device=logs.device).tril()
    logs = logs.masked_fill(~before, -torch.inf)
    of_state = sums.float() + m[:, None]
    highest = torch.maximum(of_state, logs.amax(-1))
    shares, kept = torch.exp(logs - highest[..., None]), torch.exp(of_state - highest)[..., None]
    scores = q @ k.mT * shares
    sums_of_scores = (q @ n[..., None]) * kept + scores.sum(-1, keepdim=True)
    length = torch.maximum(sums_of_scores.abs(), torch.exp(-highest)[..., None])
    y = ((q @ c) * kept + scores @ v) / (length + eps)
    added = k * shares[:, -1, :, None]
    c.mul_(kept[:, -1, :, None]).add_(added.mT @ v)
    n.mul_(kept[:, -1]).add_(added.sum(1))
    m.copy_(highest[:, -1])
    return y.transpose(0, 1)
