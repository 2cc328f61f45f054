"""What a cache of so many bytes could find in a trace: a yardstick for the prefix cache.

One request runs after the other. The cache has no slabs, pages or blocks: it holds exactly
the bytes of the tokens (16 at a time), windows and states that it keeps, and beside them
those of the request that runs. States are kept where they are worth most in conversations:
at the end of a turn and where prompts part. One that a later turn has made superfluous goes
at once. What else goes first is up to a policy:

    lru       what was used last the longest ago
    lfu       what was used least often, its earlier turns counted
    flops     recency, and tokens saved per byte, each by its rank (Marconi), the best of
              several weights
    gdsf      uses times tokens saved per byte, on top of what the last one to go had
    rate      uses per request since the first, times tokens saved per byte
    belady    clairvoyant: what is used again last
    density   clairvoyant: tokens saved per byte and per request until then

The clairvoyant ones also know where prompts will part, before they do. No server can: how
far they are ahead of the others says what knowledge of the future is worth.

    python benchmarks/yardstick.py --geometry G.json --trace T.jsonl --cache-memory 8GiB
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from exact_cache import BLOCK, NEVER, Cache, Kept, Paths, Sizes
from replay import make_plan
from traces import read_trace

from hybridrt.config import EngineConfig

WEIGHTS = (0.25, 0.5, 1.0, 2.0, 4.0)

Policy = Callable[[Cache, Sequence[Kept]], Sequence[float]]
"""What each is worth; the least goes first."""


def _lru(cache: Cache, kept: Sequence[Kept]) -> Sequence[float]:
    return [k.time for k in kept]


def _lfu(cache: Cache, kept: Sequence[Kept]) -> Sequence[float]:
    return [k.uses + k.time / NEVER for k in kept]


def _efficiency(cache: Cache, kept: Kept) -> float:
    return cache.saved(kept) / cache.freed(kept)


def _flops(weight: float, cache: Cache, kept: Sequence[Kept]) -> Sequence[float]:
    ages = _ranks([k.time for k in kept])
    gains = _ranks([_efficiency(cache, k) for k in kept])
    return (ages + weight * gains).tolist()


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Where each stands in their order, between 0 and 1; equal ones stand together."""
    distinct, places = np.unique(values, return_inverse=True)
    return places / len(distinct)


def _gdsf(cache: Cache, kept: Sequence[Kept]) -> Sequence[float]:
    return [k.credit + k.uses * _efficiency(cache, k) for k in kept]


def _rate(cache: Cache, kept: Sequence[Kept]) -> Sequence[float]:
    return [k.uses / (cache.now - k.first + 1) * _efficiency(cache, k) for k in kept]


def _belady(cache: Cache, kept: Sequence[Kept]) -> Sequence[float]:
    return [-cache.next_use(k) for k in kept]


def _density(cache: Cache, kept: Sequence[Kept]) -> Sequence[float]:
    return [_efficiency(cache, k) / (cache.next_use(k) - cache.now) for k in kept]


ONLINE: Mapping[str, Policy] = {
    "lru": _lru,
    "lfu": _lfu,
    **{f"flops {weight}": partial(_flops, weight) for weight in WEIGHTS},
    "gdsf": _gdsf,
    "rate": _rate,
}
CLAIRVOYANT: Mapping[str, Policy] = {"belady": _belady, "density": _density}
POLICIES = {**ONLINE, **CLAIRVOYANT}


def cached_tokens(paths: Paths, sizes: Sizes, capacity: int, name: str) -> int:
    """Prompt tokens that the cache has under one policy, over all requests."""
    cache, seen = Cache(paths, sizes, capacity), _Seen(paths)
    return sum(_serve(cache, seen, request, name) for request in range(len(paths.lengths)))


def all_policies(paths: Paths, sizes: Sizes, capacity: int) -> dict[str, int]:
    """The same under every policy, with windows let go as soon as they can be or kept whole."""
    both = (sizes, sizes.without_windows()) if sizes.windows else (sizes,)
    return {name: max(cached_tokens(paths, s, capacity, name) for s in both) for name in POLICIES}


class _Seen:
    """Which blocks there have been, and where they part."""

    def __init__(self, paths: Paths) -> None:
        self.nodes = paths.nodes
        self.passing = paths.passing
        self.num_children = {0: 0}

    def matched(self, request: int, limit: int) -> int:
        """Tokens that an earlier request has in common, if another goes on from there."""
        path = self.nodes[request][: limit // BLOCK + 1].tolist()
        known = sum(1 for node in path if node in self.num_children)
        return (known - 1) * BLOCK if self.num_children[path[known - 1]] else 0

    def add(self, request: int) -> None:
        """Notes the blocks of a request."""
        path = self.nodes[request].tolist()
        for parent, node in pairwise(path):
            if node not in self.num_children:
                self.num_children[node] = 0
                self.num_children[parent] += 1

    def will_part(self, request: int) -> Iterator[int]:
        """Positions at which later requests leave the way of this one."""
        passing = [sum(r > request for r in self.passing[n]) for n in self.nodes[request].tolist()]
        for block, (here, beyond) in enumerate(pairwise(passing)):
            if here > beyond:
                yield block * BLOCK


def _serve(cache: Cache, seen: _Seen, request: int, name: str) -> int:
    """One request from its hit to what it leaves; returns the tokens of the hit."""
    length, end = cache.paths.lengths[request], len(cache.paths.tokens[request]) - 1
    is_online = name in ONLINE
    cache.now = request
    position, start = cache.find(request, length - 1)
    cache.touch(request, position)
    if start is not None:
        start.uses, start.credit = start.uses + 1, cache.credit
    cache.hold(request, length)
    _make_room(cache, name, start)
    cache.hold(request, end)
    cache.hold(request, length, -1)
    _make_room(cache, name)
    parts = [seen.matched(request, length - 1)] if is_online else seen.will_part(request)
    for part in parts:
        if position < part < length:
            cache.add(request, part)
    seen.add(request)
    cache.add(request, end, start)
    if (
        start is not None
        and start in cache
        and name in ONLINE
        and seen.num_children[start.node] < 2
    ):
        cache.remove(start)
    cache.hold(request, end, -1)
    _make_room(cache, name)
    return position


def _make_room(cache: Cache, name: str, pinned: Kept | None = None) -> None:
    """Lets go what is worth least until all fits."""
    while cache.used > cache.capacity:
        kept = [one for one in cache.kept.values() if one is not pinned]
        assert kept, "a request doesn't fit alone"
        values = POLICIES[name](cache, kept)
        least = int(np.argmin(values))
        cache.credit = values[least]
        cache.shorten(kept[least])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--geometry", type=Path, required=True)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--cache-memory", default="8GiB")
    args = parser.parse_args()
    config = EngineConfig(model=str(args.geometry), cache_memory=args.cache_memory)
    assert config.cache_memory is not None
    sizes = Sizes.of(make_plan(args.geometry, config))
    paths = Paths(read_trace(args.trace))
    print(json.dumps(all_policies(paths, sizes, config.cache_memory)))


if __name__ == "__main__":
    main()
