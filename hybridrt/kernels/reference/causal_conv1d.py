"""causal_conv1d in plain torch: `width` shifted products."""

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import silu

from hybridrt.batch import Rows
from hybridrt.kernels.reference.states import load_states, store_states


def causal_conv1d(
    x: Float[Tensor, "tokens channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, " channels"] | None,
    conv_state: Float[Tensor, "pages history channels"],
    pages: Int64[Tensor, " rows"],
    batch: Rows,
    activation: Literal["silu"] | None = "silu",
) -> Float[Tensor, "tokens channels"]:
    """See `hybridrt.kernels.causal_conv1d`."""
    history = load_states(conv_state, pages, batch.has_initial_state, x.dtype)
    out = torch.empty_like(x)
    n = batch.num_decodes
    if n:
        window = torch.cat([history[:n], x[:n, None]], dim=1)
        out[:n] = (window * weight.t()).sum(1)
        history[:n] = window[:, 1:]
    for row in batch.prefills:
        window = torch.cat([history[row.row], x[row.start : row.stop]])
        out[row.start : row.stop] = _convolve(window, weight)
        history[row.row] = window[len(window) - history.shape[1] :]
    store_states(conv_state, pages, history)
    if bias is not None:
        out = out + bias
    return out if activation is None else silu(out)


def _convolve(
    window: Float[Tensor, "history_and_tokens channels"], weight: Float[Tensor, "channels width"]
) -> Float[Tensor, "tokens channels"]:
    taps = weight.t().contiguous()  # a tap's channels in a row: several times as fast
    tokens = window.shape[0] - len(taps) + 1
    out = window[:tokens] * taps[0]
    for k in range(1, len(taps)):
        out.addcmul_(window[k : k + tokens], taps[k])
    return out
