"""recent_inputs in plain torch: a view of the inputs and what was before them, copied."""

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.reference.states import load_states, prefill_chunks, read_states, store_states


def recent_inputs(
    x: Shaped[Tensor, "tokens channels"],
    state: Shaped[Tensor, "pages history channels"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
) -> Shaped[Tensor, "tokens history+1 channels"]:
    """See `hybridrt.kernels.recent_inputs`."""
    width = state.shape[1] + 1
    out = x.new_empty(len(x), width, x.shape[1])
    n = batch.num_decodes
    if n:
        out[:n] = torch.cat([read_states(state, pages[:n], x.dtype), x[:n, None]], dim=1)
        store_states(state, pages[:n], out[:n, 1:])
    for rows in prefill_chunks(batch):
        start, stop = rows[0].start, rows[-1].stop
        first = slice(rows[0].row, rows[0].row + 1)
        (history,) = load_states(state, initial_pages, batch, first, x.dtype)
        inputs = torch.cat([history, x[start:stop]])
        out[start:stop] = inputs.unfold(0, width, 1).transpose(1, 2)
        for row in rows:  # a state is inputs as they are: it needs no step of its own
            end = row.stop - start
            left = inputs[None, end : end + len(history)]
            store_states(state, pages[row.row : row.row + 1], left)
    return out
