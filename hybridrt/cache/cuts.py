"""The search for the slab: the number of equal pages into which each group cuts it.

A slab of `S` bytes cut into `n` pages of a group gives each page `S / n` bytes.
The only condition is that `S` is a multiple of `16 * n * r` for every group, `r`
being the kernel blocks in its page. So the search tries 1, 2, 3 ... of the largest
pages in a slab and, for every other group, the cuts that come nearest, and weighs
the padding inside pages against the part of the pool that half-filled slabs take.
A sequence's states may also be split by layers over several pages, which makes the
largest page, and with it the slab, smaller.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Int64

from hybridrt.cache.spec import ALIGNMENT

MOST_LARGEST_PAGES = 16  # more of them gain little: the padding is near its floor before
LEAST_SLABS = 32  # fewer make groups wait for each other
NEAREST = 48  # counts tried for the smallest page, and half as many for the others
MULTIPLES = 12  # of a slab that are tried for the sake of third groups and more
MOST_LARGEST_PAGES_OF_ALL = 32  # where nothing else is good enough
WANTED_PADDING = 0.005  # what is above it counts EXCESS times more
EXCESS = 8
ACCEPTED_PADDING = 0.03  # beyond it the search goes on with larger slabs and uneven splits
UNEVEN = 0.005  # what a split may leave free in its pages, while there is a better one
SPLIT_COST = 0.00005  # of one more page a sequence: about its share of a step's bookkeeping
TOO_LARGE = 2**45  # bytes: a common multiple beyond it is of no use


@dataclass(frozen=True, slots=True)
class Split:
    """A sequence's layers in `parts` pages: part j has those from `starts[j]` on."""

    starts: tuple[int, ...]
    page_bytes: int  # what the fullest part needs

    @property
    def parts(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class Need:
    """What a group needs: `num_bytes` in all its parts, in pages of `blocks` kernel blocks."""

    num_bytes: int
    blocks: int
    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A slab of `slab_bytes`, cut by group g into `counts[g]` pages; `num_slabs` of them."""

    slab_bytes: int
    num_slabs: int
    counts: tuple[int, ...]
    splits: tuple[Split, ...]
    padding: float
    """The largest share of a group's pages that nothing uses."""


def whole(num_bytes: int, blocks: int) -> Need:
    """The need of a group that isn't split."""
    return Need(num_bytes, blocks, (Split((0,), num_bytes),))


def splittable(layer_bytes: Sequence[int]) -> Need:
    """The need of states of these layers, which may stand in one page or in several."""
    numbers = {n for n in range(1, len(layer_bytes) + 1) if len(layer_bytes) % n == 0}
    numbers |= {n for n in (2, 3, 4, 6, 8, 12, 16, 24, 32) if n < len(layer_bytes)}
    splits = {split.starts: split for split in (_split(layer_bytes, n) for n in sorted(numbers))}
    return Need(sum(layer_bytes), 1, tuple(splits.values()))


def find_cuts(needs: Sequence[Need], memory: int) -> Cut:
    """The best slab for these groups.

    Where no cut of evenly split states pads less than 3 %, larger slabs and uneven
    splits are tried too, and the least bad is taken.

    Raises:
        ValueError: no slab leaves one for each group in `memory` bytes.
    """
    if not needs:
        return Cut(0, 0, (), (), 0.0)
    best = _search(needs, memory, MOST_LARGEST_PAGES, UNEVEN)
    if best is None or best.padding >= ACCEPTED_PADDING:
        best = _search(needs, memory, MOST_LARGEST_PAGES_OF_ALL, 1.0) or best
    if best is None:
        raise ValueError(_too_little(needs, memory))
    return best


def _search(needs: Sequence[Need], memory: int, most_largest: int, uneven: float) -> Cut | None:
    """The first of the best: of few parts before many, of few of the largest pages before many."""
    found = [
        _cheapest(needs, splits, *_candidates(needs, splits, most_largest, memory), memory)
        for splits in product(*(_even(need, uneven) for need in needs))
    ]
    possible = [costed for costed in found if costed is not None]
    return min(possible, key=lambda costed: costed[0])[1] if possible else None


def _even(need: Need, uneven: float) -> list[Split]:
    """The splits that leave little free in their own pages."""
    limit = need.num_bytes * (1 + uneven)
    return [s for s in need.splits if s.parts == 1 or s.parts * s.page_bytes <= limit]


def _candidates(
    needs: Sequence[Need], splits: Sequence[Split], most_largest: int, limit: int
) -> tuple[Int64[np.ndarray, "cuts groups"], Int64[np.ndarray, " cuts"]]:
    """Slabs of about 1, 2, ... `most_largest` of the largest pages, and how groups cut them.

    They have at most `limit` bytes. The largest page and the smallest give slabs that both
    divide: the least for each count near, and if there are more groups, multiples of it. Each of
    the other groups then takes the most pages that divide such a slab.
    """
    pages = [split.page_bytes for split in splits]
    largest, smallest = pages.index(max(pages)), pages.index(min(pages))
    others = [g for g in range(len(pages)) if g not in (largest, smallest)]
    of_largest = np.arange(1, most_largest + 1)[:, None]
    near = of_largest * pages[largest] // pages[smallest] + np.arange(2 - NEAREST, 2)
    there, near = near > 0, np.maximum(near, 1)
    unit, least = np.ones(near.shape, np.int64), np.zeros(near.shape, np.int64)
    ends = {smallest: near, largest: np.broadcast_to(of_largest, near.shape)}
    for g, count in ends.items():
        unit = _common_multiple(unit, ALIGNMENT * needs[g].blocks * count)
        least = np.maximum(least, count * pages[g])
    steps = np.arange(MULTIPLES if others else 1)[:, None]
    slabs = (-(-least // unit)[:, None] + steps) * unit[:, None]
    there = there[:, None] & (slabs <= min(limit, TOO_LARGE - 1))
    slab = slabs[there]
    counts = np.empty((len(slab), len(pages)), np.int64)
    for g, count in ends.items():
        counts[:, g] = np.broadcast_to(count[:, None], slabs.shape)[there]
    for g in others:
        counts[:, g] = _most_dividing(slab, pages[g], ALIGNMENT * needs[g].blocks)
    all_divide = counts.all(axis=1)
    return counts[all_divide], slab[all_divide]


def _common_multiple(
    a: Int64[np.ndarray, "*cuts"], b: Int64[np.ndarray, "*cuts"]
) -> Int64[np.ndarray, "*cuts"]:
    """The least, or `TOO_LARGE` where it is of no use."""
    factor = a // np.gcd(a, b)
    return np.where(factor <= TOO_LARGE // b, factor * b, TOO_LARGE)


def _most_dividing(
    slab: Int64[np.ndarray, " cuts"], page_bytes: int, alignment: int
) -> Int64[np.ndarray, " cuts"]:
    """For each slab the most pages that can be cut of it evenly; 0: none near fits."""
    most, found = slab // page_bytes, np.zeros(len(slab), np.int64)
    for fewer in reversed(range(NEAREST // 2)):
        counts = most - fewer
        even = (counts > 0) & (slab % (alignment * np.maximum(counts, 1)) == 0)
        found[even] = counts[even]
    return found


def _cheapest(
    needs: Sequence[Need],
    splits: Sequence[Split],
    counts: Int64[np.ndarray, "cuts groups"],
    slab: Int64[np.ndarray, " cuts"],
    memory: int,
) -> tuple[float, Cut] | None:
    """Of these cuts that of the least cost, if any leaves a slab for each group.

    The cost is the share of the pool that is lost to padding, and to slabs that are half
    full: one for each group, if there are several. Padding is certain, and what a slab has
    free can still be taken, so much of the first is worse than as much of the second. Fewer
    than `LEAST_SLABS` is worse than any padding, where it can be helped.
    """
    if not len(slab):
        return None
    groups = len(needs)
    strides = slab[:, None] // counts
    held = np.array([split.parts for split in splits]) * strides
    padding = (1 - np.array([need.num_bytes for need in needs]) / held).max(axis=1)
    half_full = groups * slab / (2 * memory) if groups > 1 else 0.0
    num_slabs = memory // slab
    too_few = 10 * np.maximum(0, LEAST_SLABS - num_slabs) / LEAST_SLABS
    split_cost = SPLIT_COST * sum(split.parts - 1 for split in splits)
    possible = num_slabs >= _least_slabs(splits, counts)
    excess = np.maximum(0, padding - WANTED_PADDING)
    cost = np.where(possible, padding + EXCESS * excess + half_full + too_few + split_cost, np.inf)
    i = int(cost.argmin())
    if cost[i] == np.inf:
        return None
    cut = Cut(
        slab_bytes=int(slab[i]),
        num_slabs=int(num_slabs[i]),
        counts=tuple(counts[i].tolist()),
        splits=tuple(splits),
        padding=float(padding[i]),
    )
    return float(cost[i]), cut


def _least_slabs(
    splits: Sequence[Split], counts: Int64[np.ndarray, "cuts groups"]
) -> Int64[np.ndarray, " cuts"]:
    """Slabs for one page of every part of every group."""
    parts = np.array([split.parts for split in splits])
    return (-(-parts // counts)).sum(axis=1)


def _split(layer_bytes: Sequence[int], parts: int) -> Split:
    """At most `parts` runs of layers whose largest is as small as can be."""
    low, high = max(layer_bytes), sum(layer_bytes)
    while low < high:
        middle = (low + high) // 2
        if len(_runs(layer_bytes, middle)) <= parts:
            high = middle
        else:
            low = middle + 1
    runs = list(_runs(layer_bytes, low))
    ends = [*runs[1:], len(layer_bytes)]
    sizes = [sum(layer_bytes[a:b]) for a, b in zip(runs, ends, strict=True)]
    return Split(tuple(runs), max(sizes))


def _runs(layer_bytes: Sequence[int], limit: int) -> list[int]:
    """Where runs of layers begin, of which none takes more than `limit` bytes."""
    starts, size = [0], 0
    for index, num_bytes in enumerate(layer_bytes):
        if size + num_bytes > limit:
            starts.append(index)
            size = 0
        size += num_bytes
    return starts


def _too_little(needs: Sequence[Need], memory: int) -> str:
    least = min(_least_memory(needs))
    return (
        f"cache_memory={memory} bytes is not enough for one page of each of the "
        f"{len(needs)} cache groups, which take {least} bytes; raise cache_memory"
    )


def _least_memory(needs: Sequence[Need]) -> Iterator[int]:
    """Bytes that one sequence takes, for every split and number of pages that is tried."""
    for splits in product(*(need.splits for need in needs)):
        counts, slab = _candidates(needs, splits, MOST_LARGEST_PAGES_OF_ALL, TOO_LARGE)
        if len(slab):
            yield int((slab * _least_slabs(splits, counts)).min())
