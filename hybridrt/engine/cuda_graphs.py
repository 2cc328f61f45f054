"""CUDA graphs: a decode step of each size, recorded once and launched as a whole from then on."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.engine.static_decode import DecodeStep, StaticBatches
from hybridrt.progress import count_progress
from hybridrt.transfer import waiting_raises

WARM_UPS = 2  # steps before one is recorded: what is made at a first call has been made


class NotCapturableError(Exception):
    """A decode step of this model can't be recorded; the message says why."""


def capture(
    plain: DecodeStep, step: DecodeStep, batches: StaticBatches, *, progress: bool
) -> DecodeStep:
    """Records `step` for every size of `batches`, and gives what launches the records.

    Nothing may be in the cache yet. `plain` is the same step without a compiler: on it is
    tried that nothing asks the device, and nothing depends on lengths in the host's memory.
    The largest size comes first, so that the others fit into its memory.

    Raises:
        NotCapturableError: one of the two does not hold.
    """
    graphs: dict[int, torch.cuda.CUDAGraph] = {}
    logits: dict[int, Tensor] = {}
    pool = torch.cuda.graph_pool_handle()
    largest = batches.of(batches.sizes[-1])
    with (
        torch.cuda.device_of(largest.input_ids),
        count_progress("recording CUDA graphs", len(batches.sizes), shown=progress) as advance,
    ):
        for size in reversed(batches.sizes):
            batch = batches.of(size)
            _try(plain, batch)
            _warm_up(step, batch)
            graphs[size] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[size], pool=pool):
                logits[size] = step(batch)
            advance()

    def launch(batch: ForwardBatch) -> Float[Tensor, "rows vocab"]:
        graphs[batch.num_rows].replay()
        return logits[batch.num_rows]

    return launch


def without_host_lengths(batch: ForwardBatch) -> ForwardBatch:
    """The batch with contexts that have lengths on the device alone: reading others raises."""
    return replace(batch, context_lens=batch.context_lens.to("meta"))


def _try(step: DecodeStep, batch: ForwardBatch) -> None:
    batch = without_host_lengths(batch)
    try:
        step(batch)  # kernels are compiled here, and may ask the device for what they like
        with waiting_raises():
            step(batch)
    except (RuntimeError, TypeError) as error:
        raise NotCapturableError(
            f"a step of {batch.num_rows} rows reads a length on the host or waits for the device, "
            f"which no record can: {error}"
        ) from error


def _warm_up(step: DecodeStep, batch: ForwardBatch) -> None:
    """On a stream of its own, as torch asks for before a capture."""
    current = torch.cuda.current_stream()
    stream = torch.cuda.Stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step(batch)
    current.wait_stream(stream)
