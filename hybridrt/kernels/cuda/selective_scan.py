"""selective_scan by mamba-ssm."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cuda.rows import only_decodes
from hybridrt.kernels.reference.states import prefill_states
from hybridrt.kernels.triton import selective_scan as triton


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
    """See `hybridrt.kernels.selective_scan`. Decode rows are Triton's."""
    from mamba_ssm.ops.selective_scan_interface import (  # pyright: ignore[reportMissingImports]
        selective_scan_fn,
    )

    y = torch.empty_like(x)
    n = batch.num_decodes
    if n:
        of_decodes = (ssm_state, pages[:n], initial_pages[:n], only_decodes(batch))
        y[:n] = triton.selective_scan(x[:n], dt[:n], A, B[:n], C[:n], D, *of_decodes)
    for row, state in prefill_states(ssm_state, pages, initial_pages, batch, torch.float32):
        u, step, b, c = (
            part[row.start : row.stop].float().t().contiguous()[None] for part in (x, dt, B, C)
        )
        out, last = selective_scan_fn(u, step, A, b, c, D, return_last_state=True)
        if row.context:
            # That kernel starts from zero. The recurrence is linear in its state, so what
            # an earlier one adds is added here.
            seen, last = _continue(state, step[0].t(), A, c[0].t(), last)
            out = out + seen.t()
        y[row.start : row.stop] = out[0].t()
        state.copy_(last[0])
    return y


def _continue(
    initial: Float[Tensor, "channels state_size"],
    dt: Float[Tensor, "tokens channels"],
    A: Float[Tensor, "channels state_size"],
    C: Float[Tensor, "tokens state_size"],
    last: Float[Tensor, "1 channels state_size"],
    chunk: int = 256,
) -> tuple[Float[Tensor, "tokens channels"], Float[Tensor, "1 channels state_size"]]:
    """What a state before the first token adds to every y, and to the last state."""
    elapsed = dt.cumsum(0)
    parts = [
        torch.einsum("tdn,dn,tn->td", torch.exp(t[..., None] * A), initial, c)
        for t, c in zip(elapsed.split(chunk), C.split(chunk), strict=True)
    ]
    return torch.cat(parts), last + torch.exp(elapsed[-1][:, None] * A) * initial
