"""causal_conv1d in plain torch: `width` shifted products."""

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import silu

from hybridrt.batch import Rows
from hybridrt.kernels.reference.states import load_states, prefill_chunks, read_states, store_states


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
    """See `hybridrt.kernels.causal_conv1d`."""
    out = torch.empty_like(x)
    n = batch.num_decodes
    if n:
        window = torch.cat([read_states(conv_state, pages[:n], x.dtype), x[:n, None]], dim=1)
        out[:n] = (window * weight.t()).sum(1)
        store_states(conv_state, pages[:n], window[:, 1:])
    for rows in prefill_chunks(batch):
        start, stop = rows[0].start, rows[-1].stop
        first = slice(rows[0].row, rows[0].row + 1)
        (history,) = load_states(conv_state, initial_pages, batch, first, x.dtype)
        window = torch.cat([history, x[start:stop]])
        out[start:stop] = _convolve(window, weight)
        for row in rows:  # a state is inputs as they are: it needs no step of its own
            end = row.stop - start
            state = window[None, end : end + len(history)]
            store_states(conv_state, pages[row.row : row.row + 1], state)
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
