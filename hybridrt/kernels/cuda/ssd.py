"""ssd by mamba-ssm."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cuda.rows import only_decodes
from hybridrt.kernels.reference.states import prefill_states
from hybridrt.kernels.triton import ssd as triton


def ssd(
    x: Float[Tensor, "tokens heads head_dim"],
    dt: Float[Tensor, "tokens heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "tokens groups state_size"],
    C: Float[Tensor, "tokens groups state_size"],
    D: Float[Tensor, " heads"],
    ssm_state: Float[Tensor, "pages heads head_dim state_size"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    chunk_size: int,
) -> Float[Tensor, "tokens heads head_dim"]:
    """See `hybridrt.kernels.ssd`. Decode rows are Triton's."""
    from mamba_ssm.ops.triton.ssd_combined import (  # pyright: ignore[reportMissingImports]
        mamba_chunk_scan_combined,
    )

    y = torch.empty_like(x)
    n = batch.num_decodes
    if n:
        of_decodes = (ssm_state, pages[:n], initial_pages[:n], only_decodes(batch), chunk_size)
        y[:n] = triton.ssd(x[:n], dt[:n], A, B[:n], C[:n], D, *of_decodes)
    for row, state in prefill_states(ssm_state, pages, initial_pages, batch, torch.float32):
        t = slice(row.start, row.stop)
        out, last = mamba_chunk_scan_combined(
            x[t][None],
            dt[t][None],
            A,
            B[t][None],
            C[t][None],
            chunk_size,
            D=D,
            initial_states=state[None],
            return_final_states=True,
        )
        y[t] = out[0]
        state.copy_(last[0])
    return y
