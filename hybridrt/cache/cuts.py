"""The search for the slab: the number of equal pages into which each group cuts it.

A slab of `S` bytes cut into `n` pages of a group gives each page `S / n` bytes.
The only condition is that `S` is a multiple of `16 * n * r` for every group, `r`
being the kernel blocks in its page. So the search tries 1, 2, 3 ... of the largest
pages in a slab and, for every other group, the cuts that come nearest, and weighs
the padding inside pages against the part of a small pool that half-filled slabs
take.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import lcm

from hybridrt.cache.spec import ALIGNMENT

MOST_LARGEST_PAGES = 8  # more of them gain nothing: the padding is at its floor before
LEAST_SLABS = 32  # fewer make groups wait for each other
COMBINATIONS = 4096  # tried per number of largest pages, over all groups


@dataclass(frozen=True, slots=True)
class Cut:
    """A slab of `slab_bytes`, cut by group g into `counts[g]` pages; `num_slabs` of them."""

    slab_bytes: int
    num_slabs: int
    counts: tuple[int, ...]


def find_cuts(page_bytes: Sequence[int], blocks: Sequence[int], memory: int) -> Cut:
    """The best slab for groups whose pages need `page_bytes` in `blocks` kernel blocks.

    Raises:
        ValueError: no slab leaves one for each group in `memory` bytes.
    """
    if not page_bytes:
        return Cut(0, 0, ())
    best: Cut | None = None
    best_cost = float("inf")
    for num_largest in range(1, MOST_LARGEST_PAGES + 1):
        for slab_bytes, counts in _candidates(page_bytes, blocks, num_largest):
            num_slabs = memory // slab_bytes
            cost = _cost(page_bytes, slab_bytes, counts, memory)
            if cost < best_cost and num_slabs >= len(page_bytes):
                best, best_cost = Cut(slab_bytes, num_slabs, counts), cost
    if best is None:
        raise ValueError(_too_little(page_bytes, blocks, memory))
    return best


def _candidates(
    page_bytes: Sequence[int], blocks: Sequence[int], num_largest: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Slabs of about `num_largest` of the largest pages, each with the groups' cuts."""
    target = num_largest * max(page_bytes)
    groups = len(page_bytes)
    spread = round(COMBINATIONS ** (1 / max(1, groups - 1))) if groups > 1 else 1
    options = [_near(target // need, min(spread, 64)) for need in page_bytes]
    options[page_bytes.index(max(page_bytes))] = range(num_largest, num_largest + 1)
    for counts in product(*options):
        unit = lcm(*(ALIGNMENT * n * r for n, r in zip(counts, blocks, strict=True)))
        need = max(n * size for n, size in zip(counts, page_bytes, strict=True))
        yield -(-need // unit) * unit, counts


def _near(count: int, spread: int) -> range:
    return range(max(1, count - spread + 1), count + 2)


def _cost(page_bytes: Sequence[int], slab_bytes: int, counts: Sequence[int], memory: int) -> float:
    """The share of the pool lost to padding, and to slabs that are half full.

    Fewer than `LEAST_SLABS` is worse than any padding, where it can be helped.
    """
    padding = max(1 - n * size / slab_bytes for n, size in zip(counts, page_bytes, strict=True))
    half_full = len(page_bytes) * slab_bytes / (2 * memory) if len(page_bytes) > 1 else 0.0
    too_few = max(0, LEAST_SLABS - memory // slab_bytes) / LEAST_SLABS
    return padding + half_full + too_few


def _too_little(page_bytes: Sequence[int], blocks: Sequence[int], memory: int) -> str:
    least = min(slab for slab, _ in _candidates(page_bytes, blocks, 1)) * len(page_bytes)
    return (
        f"cache_memory={memory} bytes is not enough for one page of each of the "
        f"{len(page_bytes)} cache groups, which take {least} bytes; raise cache_memory"
    )
