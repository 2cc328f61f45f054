"""linear_recurrence in plain torch: a scan of logarithmic depth over chunks of tokens."""

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.reference.states import prefill_states, read_states, store_states

CHUNK = 256  # tokens: what a scan does grows with their logarithm


def linear_recurrence(
    update: Float32[Tensor, "tokens channels"],
    decay: Float32[Tensor, "tokens channels"],
    state: Float[Tensor, "pages channels"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Float32[Tensor, "tokens channels"]:
    """See `hybridrt.kernels.linear_recurrence`."""
    h = torch.empty_like(update)
    n = batch.num_decodes
    if n:
        h[:n] = torch.addcmul(update[:n], decay[:n], read_states(state, pages[:n], torch.float32))
        store_states(state, pages[:n], h[:n])
    for row, last in prefill_states(state, pages, initial_pages, batch, torch.float32):
        for start in range(row.start, row.stop, CHUNK):
            tokens = slice(start, min(start + CHUNK, row.stop))
            h[tokens] = _scan(decay[tokens], update[tokens], last)
            last.copy_(h[tokens][-1])
    return h


def _scan(
    decay: Float32[Tensor, "tokens channels"],
    update: Float32[Tensor, "tokens channels"],
    initial: Float32[Tensor, " channels"],
) -> Float32[Tensor, "tokens channels"]:
    """All `h[t] = decay[t] h[t-1] + update[t]`, by doubling as in `selective_scan`."""
    a, h = decay, update
    reach = 1
    while reach < len(h):
        earlier = torch.addcmul(h[reach:], a[reach:], h[:-reach])
        h = torch.cat([h[:reach], earlier])
        a = torch.cat([a[:reach], a[reach:] * a[:-reach]])
        reach *= 2
    return torch.addcmul(h, a, initial)
