"""selective_scan in plain torch: a scan of logarithmic depth over chunks of tokens."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.reference.states import prefill_states, read_states, store_states

CHUNK = 32  # tokens: bounds the memory of one chunk's states


def selective_scan(
    x: Float[Tensor, "tokens channels"],
    dt: Float[Tensor, "tokens channels"],
    A: Float[Tensor, "channels state_size"],
    B: Float[Tensor, "tokens state_size"],
    C: Float[Tensor, "tokens state_size"],
    D: Float[Tensor, " channels"],
    ssm_state: Float[Tensor, "pages channels state_size"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Float[Tensor, "tokens channels"]:
    """See `hybridrt.kernels.selective_scan`."""
    xf, dt, B, C = x.float(), dt.float(), B.float(), C.float()
    y = torch.empty_like(xf)
    n = batch.num_decodes
    if n:
        decay, update = _step(xf[:n], dt[:n], A, B[:n])
        states = decay * read_states(ssm_state, pages[:n], torch.float32) + update
        y[:n] = (states * C[:n, None]).sum(-1)
        store_states(ssm_state, pages[:n], states)
    for row, state in prefill_states(ssm_state, pages, initial_pages, batch, torch.float32):
        h = state
        for start in range(row.start, row.stop, CHUNK):
            tokens = slice(start, min(start + CHUNK, row.stop))
            hs = _scan(*_step(xf[tokens], dt[tokens], A, B[tokens]), h)
            y[tokens] = (hs * C[tokens, None]).sum(-1)
            h = hs[-1]
        state.copy_(h)
    return (y + D.float() * xf).to(x.dtype)


def _step(
    x: Float[Tensor, "tokens channels"],
    dt: Float[Tensor, "tokens channels"],
    A: Float[Tensor, "channels state_size"],
    B: Float[Tensor, "tokens state_size"],
) -> tuple[Tensor, Tensor]:
    """Each token's decay `exp(dt A)` and update `dt B x`: `[tokens, channels, state_size]`."""
    return torch.exp(dt[..., None] * A.float()), (dt * x)[..., None] * B[:, None]


def _scan(
    decay: Float[Tensor, "tokens channels state_size"],
    update: Float[Tensor, "tokens channels state_size"],
    initial: Float[Tensor, "channels state_size"],
) -> Float[Tensor, "tokens channels state_size"]:
    """All `h[t] = decay[t] h[t-1] + update[t]`.

    Doubling: after each round a token's pair stands for twice as many tokens up to it,
    `(a2, b2) . (a1, b1) = (a2 a1, a2 b1 + b2)` (Blelloch 1990). Only decays of at most 1
    are multiplied, so nothing overflows.
    """
    a, h = decay, update
    reach = 1
    while reach < len(h):
        earlier = torch.addcmul(h[reach:], a[reach:], h[:-reach])
        h = torch.cat([h[:reach], earlier])
        a = torch.cat([a[:reach], a[reach:] * a[:-reach]])
        reach *= 2
    return torch.addcmul(h, a, initial)
