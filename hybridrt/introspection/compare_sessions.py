"""Two sessions against each other: their tokens, and what every layer has cached of them."""

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from hybridrt.cache.plan import LayerPlan
from hybridrt.introspection.comparison import Comparison, Row, What
from hybridrt.introspection.differences import OF_BITS, Difference, default_tolerance, difference
from hybridrt.introspection.our_run import our_dtype

_BY_TOKEN = {"k", "v", "c_kv", "k_pe", "k_index", "kv", "inputs"}
_HEAD_AXES = {"k": 1, "v": 1, "ssm_state": 0}


def compare_sessions(a: Any, b: Any, tolerance: float | None = None) -> Comparison:
    """See `hybridrt.compare`."""
    pairs = _layers(a, b)
    tolerance = tolerance or default_tolerance(*session_dtypes(a), *session_dtypes(b))
    ours, theirs = a.token_ids, b.token_ids
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs)))  # noqa: B905
    same = len(ours) == len(theirs) == shared
    rows: list[Row] = []
    notes: list[str] = []
    if not same:
        rows.append(_row(None, "tokens", "tokens", Difference(1.0, 1.0, shared), tolerance))
        notes.append(
            f"Keys, values and latents of the first {shared} tokens are compared, and no states, "
            f"which are of all tokens."
        )
    for name in (name for name, one in (("a", a), ("b", b)) if one.was_written_to):
        notes.append(f"{name} was written to: what it holds is not what its tokens give.")
    for mine, yours in pairs:
        rows += _layer(mine, yours, shared, same, tolerance)
    if same and ours:
        apart = difference(a.logits, b.logits, tolerance)
        rows.append(_row(None, "logits", "output", apart, tolerance))
    wrong = [row for row in rows if row.excess]
    return Comparison(rows, wrong, tolerance, notes, (len(ours), len(theirs)))


def _layers(a: Any, b: Any) -> list[tuple[Any, Any]]:
    mine, yours = a.layers, b.layers
    if len(mine) != len(yours):
        raise ValueError(
            f"{len(mine)} cached layers and {len(yours)}: both sessions should be of models with "
            f"the same layers"
        )
    return list(zip(mine, yours, strict=True))


def session_dtypes(session: Any) -> Iterator[torch.dtype]:
    """Those that its engine computes in and rounds weights and caches to."""
    yield our_dtype(session._engine.model)
    config = session._engine.config
    yield from (OF_BITS[x] for x in (config.kv_cache_dtype, config.quantization) if x in OF_BITS)


def _layer(mine: Any, yours: Any, shared: int, same: bool, tolerance: float) -> Iterator[Row]:
    """Every tensor that the layer caches on both sides."""
    given, expected = mine.read(), yours.read()
    for name in (name for name in given if name in expected and name != "positions"):
        axis, positions = _HEAD_AXES.get(name), None
        ours, theirs = given[name], expected[name]
        if name in _BY_TOKEN:
            ours, theirs, positions = _of_both(name, given, expected, shared)
        elif not same:
            continue
        if axis is not None and ours.dim() < 3:
            axis = None
        apart = difference(ours, theirs, tolerance, positions, axis)
        yield _row(mine.plan, name, "cache", apart, tolerance)


def _of_both(
    name: str, given: Mapping[str, Tensor], expected: Mapping[str, Tensor], shared: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What both sides still hold of the tokens that they share, and these tokens' positions."""
    sides = []
    for tensors in (given, expected):
        held = tensors.get("positions", torch.arange(len(tensors[name]))).cpu()
        sides.append((tensors[name].cpu(), held))
    (ours, mine), (theirs, yours) = sides
    both = mine[torch.isin(mine, yours) & (mine < shared)]
    return ours[torch.isin(mine, both)], theirs[torch.isin(yours, both)], both


def _row(plan: LayerPlan | None, name: str, what: What, apart: Difference, tolerance: float) -> Row:
    layer = None if plan is None else layer_number(plan.name)
    mixer = "" if plan is None else plan.mixer
    return Row(layer, mixer, name, what, apart, True, apart.error > tolerance)


def layer_number(name: str) -> int | None:
    """The number of the layer in the name of a module; None: it has none."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)
