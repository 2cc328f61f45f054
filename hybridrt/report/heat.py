"""A trace's statistics as heat maps: which there are, and their numbers packed small.

A map's numbers are 16 bits each, on a line between the least and the greatest of a statistic (of
their logarithms, where it spans many orders), so an error is below 1e-5 of that range.
`hybridrt/report/templates/heat.js` unpacks them.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from hybridrt.cache.explain import number_in
from hybridrt.cache.plan import CachePlan

if TYPE_CHECKING:
    from hybridrt.introspection.trace import Trace

MOST_HEADS = 64
"""Neighbouring heads beyond this many are drawn as their mean."""
MOST_POSITIONS = 48
MISSING = 65_535
INFINITE = 65_534
_GREATEST = 65_533


@dataclass(frozen=True, slots=True)
class Statistic:
    """What a statistic is called, on which scale it is drawn, and how to read it."""

    name: str
    title: str
    how_to_read: str
    log: bool = False


STATES = (
    Statistic(
        "state_norm",
        "Norm of the state",
        "How much a state holds. A row that keeps growing gathers without forgetting; one that "
        "levels off forgets as fast as it learns.",
        log=True,
    ),
    Statistic(
        "effective_rank",
        "Effective rank",
        "How many directions of a state are in use, weighed by their sizes. A low number in a "
        "large state is room left.",
    ),
    Statistic(
        "saturation",
        "Saturation",
        "How little a state has changed since the recorded position before: 1, not at all, since "
        "its head remembers for long or takes up little; 0, all of it is new.",
    ),
    Statistic(
        "decay", "Decay a token", "What is left of a state after one token; 1 forgets nothing."
    ),
)
HALF_LIFE = (
    Statistic(
        "half_life",
        "Retention half-life (tokens)",
        "After so many tokens half of what a head was told is gone. Bright heads remember across "
        "the text, dark ones the last few tokens.",
        log=True,
    ),
)
ATTENTION = (
    Statistic(
        "attention_first",
        "Attention on the first token",
        "The share of attention that goes to the first token. A bright row is a sink: the head has "
        "nothing to look for there.",
    ),
    Statistic(
        "attention_last",
        "Attention on the 16 tokens before",
        "The share of attention on the 16 tokens before the own one. Bright: the layer looks close "
        "by; dark: it looks far back, or at itself.",
    ),
    Statistic(
        "attention_own", "Attention on the own token", "The share of attention on the token itself."
    ),
    Statistic(
        "attention_entropy",
        "Entropy of attention (nats)",
        "0: all attention on one token; the logarithm of the number of tokens: spread evenly.",
    ),
    Statistic(
        "kv_norm",
        "Norm of keys and values",
        "How large what is cached of a token is; what stands out is hard to keep in few bits.",
        log=True,
    ),
)


def pack_trace(trace: "Trace", plan: CachePlan) -> dict[str, Any]:
    """What is drawn of a trace: positions, layers, and each statistic that a layer has."""
    kept = _even(len(trace.positions), MOST_POSITIONS)
    statistics = [s for s in (*STATES, *HALF_LIFE, *ATTENTION) if _layers_with(trace, s.name)]
    return {
        "positions": [trace.positions[i] for i in kept],
        "positions_in_all": len(trace.positions),
        "layers": {
            str(i): {
                "label": str(number_in(plan.layers[i].name)),
                "name": plan.layers[i].name,
                "mixer": plan.layers[i].mixer,
            }
            for i in trace.layers
        },
        "statistics": {s.name: _pack_statistic(trace, s, kept) for s in statistics},
    }


def names_of(statistics: Sequence[Statistic], packed: dict[str, Any]) -> list[str]:
    """Those of the statistics that a packed trace has."""
    return [s.name for s in statistics if s.name in packed["statistics"]]


def binned_heads(
    values: Float[np.ndarray, "positions heads"],
) -> Float[np.ndarray, "positions bins"]:
    """`[positions, heads]`, at most `MOST_HEADS` of them: means of neighbours that are known."""
    heads = values.shape[1]
    if heads <= MOST_HEADS:
        return values
    starts = np.linspace(0, heads, MOST_HEADS, endpoint=False).astype(int)
    known = ~np.isnan(values)
    sums = np.add.reduceat(np.where(known, values, 0), starts, axis=1)
    counts = np.add.reduceat(known.astype(int), starts, axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _layers_with(trace: "Trace", name: str) -> list[int]:
    return [i for i in trace.layers if name in trace.statistics[i]]


def _pack_statistic(trace: "Trace", statistic: Statistic, kept: Sequence[int]) -> dict[str, Any]:
    tables = {
        i: np.asarray(trace.statistics[i][statistic.name], dtype=np.float64)[kept]
        for i in _layers_with(trace, statistic.name)
    }
    heads = {i: table.shape[1] for i, table in tables.items()}
    tables = {i: binned_heads(table) for i, table in tables.items()}
    finite = np.concatenate([table[np.isfinite(table)] for table in tables.values()])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    log = statistic.log and low > 0
    return {
        "title": statistic.title,
        "how_to_read": statistic.how_to_read,
        "low": low,
        "high": high,
        "log": log,
        "layers": {
            str(i): {
                "heads": heads[i],
                "rows": table.shape[1],
                "data": _pack(table, low, high, log),
            }
            for i, table in tables.items()
        },
    }


def _pack(table: Float[np.ndarray, "positions rows"], low: float, high: float, log: bool) -> str:
    """Little-endian uint16 `[positions, rows]` in base64."""
    known = np.isfinite(table)
    values = np.where(known, table, low)
    if log:
        low, high, values = np.log(low), np.log(high), np.log(values)
    scaled = (values - low) / (high - low) if high > low else np.zeros_like(values)
    codes = np.where(known, np.rint(scaled * _GREATEST), MISSING)
    codes = np.where(np.isposinf(table), INFINITE, codes)
    return base64.b64encode(codes.astype("<u2").tobytes()).decode()


def _even(count: int, most: int) -> list[int]:
    """At most so many of `range(count)`, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()
