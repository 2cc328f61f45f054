"""Trace: what a session's layers held at positions of a text, and what they did with it."""

import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from hybridrt.engine.engine import Engine
from hybridrt.engine.held import Held
from hybridrt.introspection.recorder import TraceRecorder
from hybridrt.introspection.statistics import check_statistics
from hybridrt.introspection.trace_file import TraceFiles, TraceWriter
from hybridrt.values import plain_int

Statistics = Mapping[int, Mapping[str, Float32[np.ndarray, "positions heads"]]]


class Trace:
    """What was recorded of a text. `session.trace` makes one, `Trace.load` reads one.

    Attributes:
        positions: tokens of the session behind which states were recorded, ascending.
        layers: the layers, as indices into `llm.plan.layers`.
        layer_names: the name in the model of each of these.
        every: how many tokens apart the positions are, but for the last.
        statistics: `[layer][name]` is `float32[positions, heads]`, with one head where a
            statistic is the layer's. What a layer has no such thing of is not there.
        complete: whether all positions were reached; False of what was broken off.
        path: the folder with the states; None: they were not kept.
    """

    def __init__(
        self,
        positions: tuple[int, ...],
        layer_names: Mapping[int, str],
        every: int,
        statistics: Statistics,
        files: TraceFiles | None = None,
        path: Path | None = None,
        *,
        complete: bool = True,
    ) -> None:
        self.positions, self.every = positions, every
        self.layers = tuple(layer_names)
        self.layer_names = layer_names
        self.statistics = statistics
        self.complete = complete
        self.path = path
        self._files = files

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Reads a trace that was written to a folder, be it that it was broken off.

        Raises:
            ValueError: there is no trace in the folder; says what is wrong.
            OSError: a file can't be read.
        """
        files = TraceFiles(Path(path))
        index = files.index
        return cls(
            files.positions,
            {int(layer): about["name"] for layer, about in index["layers"].items()},
            index["every"],
            files.statistics(),
            files,
            Path(path),
            complete=index["complete"],
        )

    def __repr__(self) -> str:
        return (
            f"<Trace of {len(self.layers)} layers at {len(self.positions)} positions, "
            f"every {self.every} tokens>"
        )

    def states(self, layer: int, position: int) -> dict[str, Tensor]:
        """What a layer held behind the first `position` tokens, read from the trace's files.

        As `session.layers[layer].read()` would have given it there. Of attention and MLA layers it
        has the tokens that were traced, from the first of them up to the position: those that a
        window has left behind too, and none of those that the session had before.

        Raises:
            ValueError: the trace has no files, or not that layer or position.
        """
        if self._files is None:
            raise ValueError("the states were not kept; give session.trace a path=")
        if layer not in self.layers:
            raise ValueError(f"layer={layer!r} was not traced; should be one of {self.layers}")
        if position not in self.positions:
            raise ValueError(f"position={position!r} should be one of {self.positions}")
        return self._files.states(layer, position)


def record(
    engine: Engine,
    held: Held,
    token_ids: Sequence[int],
    compute: Callable[[], object],
    *,
    layers: Sequence[int] | None,
    every: int,
    path: str | os.PathLike[str] | None,
    statistics: Sequence[str] | None,
) -> Trace:
    """See `Session.trace`. All that the session has so far is computed.

    `token_ids` are those that `compute` appends and computes.
    """
    plans = {i: engine.plan.layers[i] for i in _check_layers(layers, len(engine.plan.layers))}
    names = check_statistics(statistics)
    every = plain_int(every)
    if type(every) is not int or every < 1:
        raise ValueError(f"every={every!r} should be a number of tokens, at least 1")
    if not token_ids:
        raise ValueError(f"{held.name}: there are no tokens to trace; give at least one")
    start = len(held.token_ids)
    positions = positions_of(start, start + len(token_ids), every)
    about = {
        "every": every,
        "num_tokens_before": start,
        "token_ids": [*token_ids],
    }
    writer = None if path is None else TraceWriter(Path(path), plans, about)
    recorder = TraceRecorder(engine, held, list(plans), positions, names, writer)
    with engine.recording(recorder):
        compute()
    if writer is not None:
        writer.write_index(complete=True)
    found: dict[int, dict[str, np.ndarray]] = {index: {} for index in plans}
    for (index, name), values in recorder.found.items():
        found[index][name] = torch.cat(values).numpy()
    return Trace(
        tuple(positions),
        {index: plan.name for index, plan in plans.items()},
        every,
        found,
        None if path is None else TraceFiles(Path(path)),
        None if path is None else Path(path),
    )


def positions_of(start: int, end: int, every: int) -> list[int]:
    """The multiples of `every` behind `start`, and the end."""
    return [*range(start // every * every + every, end, every), end]


def _check_layers(layers: Sequence[int] | None, count: int) -> list[int]:
    if layers is None:
        return [*range(count)]
    if not isinstance(layers, Iterable):
        raise ValueError(
            f"layers={reprlib.repr(layers)} should be a list of indices into llm.plan.layers"
        )
    indices = [plain_int(index) for index in layers]
    wrong = [i for i in indices if type(i) is not int or not 0 <= i < count]
    if wrong:
        raise ValueError(
            f"layers={reprlib.repr(wrong)}: should be in [0, {count}), as in llm.plan.layers"
        )
    return sorted({*indices})
