"""Plans, page maps and traces made by hand, larger than a test would want to run."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridrt.cache.cache_map import CacheMap
from hybridrt.cache.plan import CachePlan
from hybridrt.cache.planner import plan
from hybridrt.config import EngineConfig
from hybridrt.engine.geometry import load_geometry
from hybridrt.report.frames import Frame

KV = {"kind": "attention", "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
STATE = {
    "kind": "state",
    "states": [["conv_state", [3, 8448], "bfloat16"], ["ssm_state", [128, 64, 128], "bfloat16"]],
}
PERIOD = [STATE, STATE, STATE, {**KV, "window": 1024}, STATE, STATE, STATE, KV]


def plan_of(layers: list[dict[str, Any]], folder: Any, memory: int = 2**30) -> CachePlan:
    """The plan of a geometry with these layers."""
    import json

    file = folder / "geometry.json"
    file.write_text(json.dumps({"name": "stand-in", "mixer": "mamba2", "layers": layers}))
    config = EngineConfig(model=str(file))
    return plan(load_geometry(file, config).layers, config, memory)


@dataclass(frozen=True)
class HandMadeTrace:
    """As `session.trace` gives it."""

    positions: tuple[int, ...]
    layers: tuple[int, ...]
    statistics: dict[int, dict[str, np.ndarray]]


def hand_made_trace(
    planned: CachePlan, num_positions: int = 48, num_heads: int = 128
) -> HandMadeTrace:
    """Every statistic of every layer, drawn at random; one half-life is infinite, one unknown."""
    draws = np.random.default_rng(0)
    shape = (num_positions, num_heads)
    states = ("state_norm", "effective_rank", "saturation", "decay", "half_life")
    attention = ("attention_first", "attention_last", "attention_own", "attention_entropy")
    statistics = {
        i: {
            name: draws.uniform(0.1, 50, shape).astype(np.float32)
            for name in (states if layer.kind == "state" else (*attention, "kv_norm"))
        }
        for i, layer in enumerate(planned.layers)
    }
    first = next(values for values in statistics.values() if "half_life" in values)
    first["half_life"][:, 0] = np.inf
    first["half_life"][:, 1] = np.nan
    positions = tuple(16 * (n + 1) for n in range(num_positions))
    return HandMadeTrace(positions, tuple(statistics), statistics)


def hand_made_map(planned: CachePlan, step: int) -> CacheMap:
    """Groups own slabs in turn, every third is free; pages are in all states there are."""
    draws = np.random.default_rng(step)
    slabs = np.arange(planned.num_slabs)
    slab_groups = np.where(slabs % 3 == 2, -1, slabs % len(planned.groups)).astype(np.int16)
    pages = []
    for number, group in enumerate(planned.groups):
        codes = draws.integers(-3, 4, planned.num_slabs * group.pages_per_slab)
        own = np.repeat(slab_groups == number, group.pages_per_slab)
        pages.append(np.where(own, codes, -4).astype(np.int32))
    return CacheMap(planned, slab_groups, tuple(pages), ("a/0", "b/0", "b/1", f"c-{step}/0"))


def hand_made_frames(planned: CachePlan, count: int = 60) -> list[Frame]:
    """Frames of such maps."""
    return [
        Frame("A scene", f"step {n}", n % 4, 100 * n, hand_made_map(planned, n))
        for n in range(count)
    ]
