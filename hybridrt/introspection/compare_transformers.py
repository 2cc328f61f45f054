"""A session against transformers' model of the same checkpoint, tensor by tensor."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hybridrt.introspection.capture import Call
from hybridrt.introspection.compare_sessions import session_dtypes
from hybridrt.introspection.comparison import Comparison, Row, What
from hybridrt.introspection.counterparts import Counterparts, pieces
from hybridrt.introspection.differences import Difference, default_tolerance, difference
from hybridrt.introspection.our_run import OurRun, our_dtype, run_ours
from hybridrt.introspection.readable import read_slot
from hybridrt.introspection.their_cache import cached_pairs, path_in
from hybridrt.introspection.their_run import TheirRun, run_theirs
from hybridrt.introspection.verdict import LAYER, LOGITS, wrong_rows
from hybridrt.layers.linear import Linear


def compare_transformers(
    session: Any, other: nn.Module, tolerance: float | None = None
) -> Comparison:
    """See `hybridrt.compare`."""
    both = Counterparts(session._engine.model, other)
    ours = run_ours(session)
    theirs = run_theirs(other, both.their_layers, session.token_ids)
    tolerance = tolerance or default_tolerance(*session_dtypes(session), our_dtype(other))
    rows = _Rows(both, ours, theirs, len(session.token_ids), tolerance).all()
    return Comparison(rows, wrong_rows(rows), tolerance, _notes(both, theirs))


def _notes(both: Counterparts, theirs: TheirRun) -> list[str]:
    notes = [] if theirs.note is None else [theirs.note]
    for side, names in zip(("here", "in transformers' model"), both.without, strict=True):
        if names:
            few = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            notes.append(f"{len(names)} weights {side} have no counterpart of their name: {few}")
    return notes


class _Rows:
    """Makes the rows of a comparison, in the order of computation."""

    def __init__(
        self, both: Counterparts, ours: OurRun, theirs: TheirRun, num_tokens: int, tolerance: float
    ) -> None:
        self.both, self.ours, self.theirs = both, ours, theirs
        self.num_tokens, self.tolerance = num_tokens, tolerance
        self.paths = {module: path for path, module in both.model.named_modules()}
        self.mixers = _mixers(both)

    def all(self) -> list[Row]:
        """Of the embedding, of every layer, and of what stands behind them."""
        seen: set[int] = set()
        embedding, behind = self._outside()
        rows = [*self._weights(None, self.both.ours[embedding.module], seen), *self._embedding()]
        for index, layer in enumerate(self.both.our_layers):
            rows += self._weights(index, self.both.ours[layer], seen)
            rows += self._layer(index)
        rows += self._weights(None, self.both.ours[self.both.model], seen)
        for call in behind:
            rows += self._call(call, decides=False)
        return [*rows, self._row(None, LOGITS, "output", self.ours.logits, self.theirs.logits)]

    def _outside(self) -> tuple[Call, list[Call]]:
        """The call of the embedding, and those behind the last layer."""
        calls = [call for call in self.ours.calls if call.layer is None]
        embed = self.both.model.model.embed_tokens
        last = max(call.order for call in self.ours.calls if call.layer is not None)
        first = next(call for call in calls if call.module is embed)
        return first, [c for c in calls if c.order > last and c.module is not self.both.model]

    def _embedding(self) -> Iterator[Row]:
        """What goes into the first layer."""
        ours = self._layer_call(self.ours.calls, self.both.our_layers[0])
        theirs = self._layer_call(self.theirs.calls, self.both.their_layers[0])
        pair = _alike(ours.input(self.num_tokens), theirs.input(self.num_tokens))
        if pair is not None:
            yield self._row(None, "embedding", "output", *pair)

    @staticmethod
    def _layer_call(calls: Any, layer: nn.Module) -> Call:
        return next(call for call in calls if call.module is layer)

    def _weights(self, layer: int | None, held: frozenset[int], seen: set[int]) -> Iterator[Row]:
        """Of places that no earlier layer holds."""
        for index in sorted(held - seen):
            weight = self.both.weights[index]
            ours = read_slot(weight.slot)
            if ours is not None and ours.numel() == weight.tensor.numel():
                expected = weight.tensor.reshape(ours.shape)
                apart = difference(ours, expected, self.tolerance)
                module = weight.slot.module
                yield self._made(layer, weight.name, "weight", apart, True, self._inside(module))
        seen |= held

    def _layer(self, index: int) -> Iterator[Row]:
        """Calls in the order of their ends; what is cached before the mixer's last projection."""
        calls = [call for call in self.ours.calls if call.layer == index]
        cached = list(
            cached_pairs(index, self.both, self.ours, self.theirs, self.num_tokens, calls)
        )
        for call in calls:
            for before, inside, name, given, expected, positions, axis in cached:
                if before is call:
                    apart = difference(given, expected, self.tolerance, positions, axis)
                    yield self._made(index, name, "cache", apart, True, inside)
            yield from self._call(call, decides=call.module is self.both.our_layers[index])

    def _call(self, call: Call, *, decides: bool) -> Iterator[Row]:
        """What goes into a projection, and what a module gives, beside their counterparts."""
        whole = self._counterparts(call, self.both.ours[call.module])
        parts = [] if whole else [*self._pieces(call)]
        if isinstance(call.module, Linear):
            givers = whole or [other for _, _, others in parts for other in others]
            ours, theirs = call.input(self.num_tokens), [o.input(self.num_tokens) for o in givers]
            yield from self._best(call, self._name(call), "input", ours, theirs)
        output = call.output(self.num_tokens)
        results = [other.output(self.num_tokens) for other in whole]
        yield from self._best(call, self._name(call), "output", output, results, decides=decides)
        for name, columns, others in parts:
            if output is not None:
                results = [other.output(self.num_tokens) for other in others]
                yield from self._best(call, name, "output", output[..., columns], results)

    def _counterparts(self, call: Call, held: frozenset[int]) -> list[Call]:
        """Calls in the same layer of modules with the same weights."""
        if not held:
            return []
        return [
            other
            for other in self.theirs.calls
            if other.layer == call.layer and self.both.theirs[other.module] == held
        ]

    def _pieces(self, call: Call) -> Iterator[tuple[str, Tensor, list[Call]]]:
        """Each part of a fused projection: its name, its outputs, and who makes them there."""
        held = self.both.ours[call.module]
        parent = self._name(call).rpartition(".")[0]
        for index, columns in pieces(call.module, self.both.weights, held).items():
            others = [
                other
                for other in self.theirs.calls
                if other.layer == call.layer and index in self.both.theirs[other.module] < held
            ]
            key = self.both.weights[index].slot.key.removesuffix(".weight")
            yield f"{parent}.{key}" if parent else key, columns, others

    def _best(
        self,
        call: Call,
        name: str,
        what: What,
        ours: Tensor | None,
        theirs: Sequence[Tensor | None],
        *,
        decides: bool = False,
    ) -> Iterator[Row]:
        """Beside the one that is nearest: of modules in one another, all hold the same weights."""
        pairs = [pair for other in theirs if (pair := _alike(ours, other)) is not None]
        rows = [self._row(call.layer, name, what, *pair, decides=decides) for pair in pairs]
        if rows:
            yield min(rows, key=lambda row: row.error)

    def _name(self, call: Call) -> str:
        """Within its layer; the layer itself is `layer`."""
        path = self.paths[call.module]
        if call.layer is None:
            return path.rpartition(".")[2]
        layer = self.both.our_layers[call.layer]
        return LAYER if call.module is layer else path_in(layer, call.module) or path

    def _inside(self, module: nn.Module) -> str:
        """The path in its layer of a module with weights."""
        found = (path_in(layer, module) for layer in self.both.our_layers)
        return next((path for path in found if path), "")

    def _row(
        self,
        layer: int | None,
        name: str,
        what: What,
        given: Tensor,
        expected: Tensor,
        *,
        decides: bool = True,
    ) -> Row:
        apart = difference(given, expected, self.tolerance, torch.arange(self.num_tokens))
        return self._made(layer, name, what, apart, decides, name)

    def _made(
        self,
        layer: int | None,
        name: str,
        what: What,
        apart: Difference,
        decides: bool,
        inside: str,
    ) -> Row:
        mixer = "" if layer is None else self.mixers[layer]
        excess = apart.error > self.tolerance
        return Row(layer, mixer, name, what, apart, decides, excess, inside)


def _mixers(both: Counterparts) -> list[str]:
    """What each layer mixes tokens with."""
    cached = both.model.cached_layers().values()
    return [
        " + ".join(dict.fromkeys(part.mixer for part in layer.modules() if part in cached))  # pyright: ignore
        for layer in both.our_layers
    ]


def _alike(ours: Tensor | None, theirs: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Both as `[tokens, numbers]`, if they have as many."""
    if ours is None or theirs is None or not ours.numel() or ours.numel() != theirs.numel():
        return None
    return ours.flatten(1), theirs.flatten(1)
