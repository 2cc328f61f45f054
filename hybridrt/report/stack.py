"""The stack as rows, one a layer: what it is made of, what it caches, and how much of it."""

from collections.abc import Sequence
from typing import Any, Protocol

from hybridrt.cache.explain import layer_data, number_in
from hybridrt.cache.plan import CachePlan, LayerPlan

LETTERS = {"full": "F", "window": "W", "state": "S"}
"""Said beside a kind's colour, for whoever can't tell colours apart."""
LENGTHS = (256, 2_048, 16_384, 131_072, 1_048_576)


class Part(Protocol):
    """A part of a model, as `hybridrt.cli.parts.ModelPart` has it."""

    @property
    def name(self) -> str: ...
    @property
    def is_layer(self) -> bool: ...
    @property
    def modules(self) -> tuple[str, ...]: ...
    @property
    def parameters(self) -> int: ...
    @property
    def parameter_bytes(self) -> int: ...


def stack_rows(plan: CachePlan, parts: Sequence[Part] = ()) -> list[dict[str, Any]]:
    """One row a layer, in order; without `parts`, one a number in the plan's names."""
    if not parts:
        numbers = sorted({number_in(layer.name) for layer in plan.layers})
        return [_row(str(n), _numbered(plan, n)) for n in numbers]
    rows = []
    for part in parts:
        if not part.is_layer:
            continue
        cached = [layer for layer in plan.layers if f"{layer.name}.".startswith(f"{part.name}.")]
        row = _row(part.name.rpartition(".")[2], cached)
        row |= {"modules": _modules(part, cached), "parameters": part.parameters}
        rows.append(row | {"parameter_bytes": part.parameter_bytes})
    return rows


def stack_lengths(longest: int | None) -> list[int]:
    """Context lengths at which the stack's bytes are drawn; the last is the longest."""
    if longest is None:
        return list(LENGTHS[:4])
    return [*(length for length in LENGTHS if length < longest), longest]


def _modules(part: Part, cached: Sequence[LayerPlan]) -> list[str]:
    """What a layer is made of, and of a module of several mixers, which they are."""
    names, mixers = list(part.modules), [layer.mixer for layer in cached]
    if mixers and not set(mixers) & set(names):
        return [f"{names[0]} ({', '.join(mixers)})", *names[1:]]
    return names


def _numbered(plan: CachePlan, number: int) -> list[LayerPlan]:
    return [layer for layer in plan.layers if number_in(layer.name) == number]


def _row(label: str, cached: Sequence[LayerPlan]) -> dict[str, Any]:
    return {
        "label": label,
        "modules": [layer.mixer for layer in cached],
        "parameters": None,
        "parameter_bytes": None,
        "cached": [_cached(layer) for layer in cached],
    }


def _cached(layer: LayerPlan) -> dict[str, Any]:
    return layer_data(layer) | {"letter": LETTERS[layer.kind]}
