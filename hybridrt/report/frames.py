"""A pool's page maps over time, packed so that a page of a few hundred kB holds them.

Only slabs that something was in are kept, in each frame only those that changed, and of a slab
runs of equal pages. `hybridrt/report/templates/map.js` unpacks them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hybridrt.cache.cache_map import CacheMap

MOST_FRAMES = 120
MOST_PAGES = 6_000
"""Pages drawn in a frame; slabs beyond them are counted and left out."""

FREE = -3
CACHED = -2
SHARED = -1


@dataclass(frozen=True, slots=True)
class Frame:
    """The pool behind one step, and what the step did. `scene` is the part of the run it is in."""

    scene: str
    text: str
    running: int
    tokens: int
    map: "CacheMap"


@dataclass(slots=True)
class _Packer:
    """The slabs as the frame before had them, and every sequence's number."""

    sequences: dict[str, int] = field(default_factory=dict)
    last: dict[int, list[Any]] = field(default_factory=dict)

    def pack(self, frame: Frame, slabs: Sequence[int]) -> dict[str, Any]:
        changed: list[list[Any]] = []
        for place, slab in enumerate(slabs):
            now = self._slab(frame.map, slab)
            if self.last.get(place) != now:
                self.last[place] = now
                changed.append([place, *now])
        return {
            "scene": frame.scene,
            "text": frame.text,
            "running": frame.running,
            "tokens": frame.tokens,
            "counts": page_counts(frame.map),
            "changed": changed,
        }

    def _slab(self, found: "CacheMap", slab: int) -> list[Any]:
        """Its group, and runs `[code, count, ...]` of its pages; a free slab has no pages."""
        group = int(found.slab_groups[slab])
        if group < 0:
            return [-1, []]
        size = found.plan.groups[group].pages_per_slab
        codes = found.pages[group][slab * size : (slab + 1) * size].tolist()
        numbered = (self._number(found.sequences[c]) if c >= 0 else c for c in codes)
        return [group, [n for code, run in groupby(numbered) for n in (code, len(list(run)))]]

    def _number(self, sequence: str) -> int:
        return self.sequences.setdefault(sequence, len(self.sequences))


def pack_frames(frames: Sequence[Frame]) -> dict[str, Any]:
    """The frames as plain data, every so many left out if there are very many."""
    if not frames:
        raise ValueError("a map over time needs at least one frame")
    every = -(-len(frames) // MOST_FRAMES)
    kept = [*frames[:-1][::every], frames[-1]]
    slabs, left_out = _shown_slabs(kept)
    packer = _Packer()
    packed = [packer.pack(frame, slabs) for frame in kept]
    plan = frames[0].map.plan
    return {
        "every": every,
        "slabs": slabs,
        "slabs_left_out": left_out,
        "num_slabs": plan.num_slabs,
        "slab_bytes": plan.slab_bytes,
        "groups": [
            {
                "name": group.name,
                "kind": group.kind,
                "pages_per_slab": group.pages_per_slab,
                "page_size": group.page_size,
                "page_stride": group.page_stride,
                "padding_bytes": group.padding_bytes // group.parts,
                "padding_percent": group.padding_percent,
            }
            for group in plan.groups
        ],
        "sequences": list(packer.sequences),
        "start": _most_shared(packed),
        "frames": packed,
    }


def page_counts(found: "CacheMap") -> list[dict[str, int]]:
    """Of each group, its pages that one sequence holds, several hold, that are kept, and free."""
    counts = []
    for pages in found.pages:
        counts.append(
            {
                "own": int(np.count_nonzero(pages >= 0)),
                "shared": int(np.count_nonzero(pages == SHARED)),
                "cached": int(np.count_nonzero(pages == CACHED)),
                "free": int(np.count_nonzero(pages == FREE)),
            }
        )
    return counts


def _most_shared(packed: Sequence[dict[str, Any]]) -> int:
    """The frame to show first: an empty pool, as before the first step, would say nothing."""
    return max(
        range(len(packed)), key=lambda n: sum(count["shared"] for count in packed[n]["counts"])
    )


def _shown_slabs(frames: Sequence[Frame]) -> tuple[list[int], int]:
    """Slabs that any frame uses, as many as can be drawn; and how many of them can't."""
    used: set[int] = set()
    for frame in frames:
        used.update(np.flatnonzero(frame.map.slab_groups >= 0).tolist())
    most = max(group.pages_per_slab for group in frames[0].map.plan.groups)
    shown = sorted(used)[: max(1, MOST_PAGES // most)]
    return shown, len(used) - len(shown)
