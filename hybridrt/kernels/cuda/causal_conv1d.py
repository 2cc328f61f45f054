"""causal_conv1d by the package of that name."""

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.cuda.rows import only_decodes
from hybridrt.kernels.reference.states import prefill_states
from hybridrt.kernels.triton import causal_conv1d as triton


def causal_conv1d(
    x: Float[Tensor, "tokens channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, " channels"] | None,
    conv_state: Float[Tensor, "pages history channels"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    activation: Literal["silu"] | None = "silu",
) -> Float[Tensor, "tokens channels"]:
    """See `hybridrt.kernels.causal_conv1d`. Decode rows are Triton's."""
    from causal_conv1d import causal_conv1d_fn  # pyright: ignore[reportAttributeAccessIssue]

    out = torch.empty_like(x)
    n = batch.num_decodes
    if n:
        of_decodes = (conv_state, pages[:n], initial_pages[:n], only_decodes(batch), activation)
        out[:n] = triton.causal_conv1d(x[:n], weight, bias, *of_decodes)
    for row, history in prefill_states(conv_state, pages, initial_pages, batch, x.dtype):
        tokens = x[row.start : row.stop].contiguous()
        out[row.start : row.stop] = causal_conv1d_fn(
            tokens.t()[None],
            weight,
            bias,
            initial_states=history.t()[None],
            activation=activation,
        )[0].t()
        history.copy_(torch.cat([history, tokens])[len(tokens) :])
    return out
