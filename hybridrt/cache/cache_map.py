"""CacheMap: who owns each slab and each page of the pool, at one moment.

It is put together from what is kept up to date anyway: a byte per page in the allocator, which
says whether it is taken, and the page tables of the sequences. So it costs a few passes over
arrays, and can be made at every step.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
from jaxtyping import Int16, Int32, UInt8

from hybridrt.cache.cache_map_tables import map_tables
from hybridrt.cache.plan import CachePlan, GroupPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.show import Shown, ShowsItself
from hybridrt.values import plain_int

UNUSED, FREE, CACHED, SHARED = -4, -3, -2, -1
NO_GROUP = -1
_NARROW = 32  # pages in a slab: below that, one pass for each of them is faster than one per slab

PageState = Literal["unused", "free", "cached", "shared", "held"]
_STATES: Mapping[int, PageState] = {
    UNUSED: "unused",
    FREE: "free",
    CACHED: "cached",
    SHARED: "shared",
}

Owners = Int32[np.ndarray, " num_pages"]


@dataclass(frozen=True, slots=True)
class PageUse:
    """One page: where it is in the pool, and who has it.

    `state` is `unused` (its slab is another group's, or free), `free`, `cached` (nobody holds it,
    and it is kept for later prompts), `shared` (by several sequences) or `held` by `sequence`.
    """

    group: str
    number: int
    slab: int
    first_byte: int
    num_bytes: int
    state: PageState
    sequence: str | None


@dataclass(frozen=True, slots=True)
class GroupUse:
    """What one group has of the pool: slabs, pages, and bytes.

    `shared` pages are some of those `in_use`. Bytes in use and cached are without `padding`,
    which is that of all these pages; `free` ones are those of free pages in the group's slabs. All
    four together are the bytes of its slabs.
    """

    group: str
    kind: str
    num_slabs: int
    pages_in_use: int
    pages_shared: int
    pages_cached: int
    pages_free: int
    bytes_in_use: int
    bytes_cached: int
    bytes_free: int
    bytes_padding: int


@dataclass(frozen=True, slots=True, eq=False)
class CacheMap(ShowsItself):
    """Who has what of the pool. It stays as it is when the engine goes on.

    Attributes:
        plan: sizes of everything.
        slab_groups: for each slab the index in `plan.groups` of its group; -1: it is free.
        pages: for each group and each of its page numbers `p`, which is in slab
            `p // pages_per_slab`: `UNUSED` (-4) the slab is not the group's, `FREE` (-3),
            `CACHED` (-2) nobody holds it and it is kept, `SHARED` (-1) several sequences hold it,
            or `k >= 0`: `sequences[k]` alone does. Read-only, as `slab_groups`.
        sequences: those that hold pages, in the order in which they came: sessions by
            their name, requests as `request id/index of the output`.
    """

    plan: CachePlan
    slab_groups: Int16[np.ndarray, " num_slabs"]
    pages: tuple[Int32[np.ndarray, " _"], ...]
    sequences: tuple[str, ...]

    @property
    def groups(self) -> tuple[GroupUse, ...]:
        """What each group has, in the order of the plan."""
        held = np.bincount(self.slab_groups + 1, minlength=len(self.plan.groups) + 1)
        return tuple(
            _use(group, int(num_slabs), owners)
            for group, num_slabs, owners in zip(self.plan.groups, held[1:], self.pages, strict=True)
        )

    @property
    def bytes(self) -> dict[str, int]:
        """All bytes of the pool: `in_use`, `cached`, `free` and `padding` in slabs of groups, and
        `free_slabs`. Together they are `plan.pool_bytes`.
        """
        return _sums(self.groups) | {"free_slabs": self.num_free_slabs * self.plan.slab_bytes}

    @property
    def bytes_by_kind(self) -> dict[str, dict[str, int]]:
        """As `bytes`, for each kind of group there is: `full`, `window`, `state`."""
        kinds = dict.fromkeys(group.kind for group in self.plan.groups)
        return {kind: _sums([use for use in self.groups if use.kind == kind]) for kind in kinds}

    @property
    def num_free_slabs(self) -> int:
        """Slabs that any group may take."""
        return int((self.slab_groups == NO_GROUP).sum())

    @property
    def fragmentation(self) -> float:
        """The share of the free bytes that lie in slabs of which some page is taken.

        Only the group that has such a slab can use them. 0 if nothing is free.
        """
        sizes = self.bytes
        free = sizes["free"] + sizes["free_slabs"]
        return sizes["free"] / free if free else 0.0

    @property
    def padding(self) -> int:
        """Bytes of pages in use or cached that no layer uses."""
        return self.bytes["padding"]

    @property
    def shared_bytes(self) -> int:
        """Bytes of pages that several sequences hold. With those of all owners they are in use."""
        pairs = zip(self.plan.groups, self.pages, strict=True)
        return sum(group.used_bytes(int((owners == SHARED).sum())) for group, owners in pairs)

    def owners(self) -> dict[str, int]:
        """Bytes of the pages that each sequence holds alone, without padding.

        What it shares with others is in `shared_bytes`.
        """
        sizes = np.zeros(len(self.sequences), np.int64)
        for group, owners in zip(self.plan.groups, self.pages, strict=True):
            own = np.bincount(owners[owners >= 0], minlength=len(self.sequences))
            sizes += np.array([group.used_bytes(count) for count in own.tolist()], np.int64)
        return dict(zip(self.sequences, sizes.tolist(), strict=True))

    def page(self, group: str, number: int) -> PageUse:
        """One page of a group.

        Raises:
            ValueError: there is no such group, or no such page in it.
        """
        names = [plan.name for plan in self.plan.groups]
        if group not in names:
            raise ValueError(f"group={group!r} should be one of {names}")
        index = names.index(group)
        plan, owners = self.plan.groups[index], self.pages[index]
        number = plain_int(number)
        if type(number) is not int or not 0 <= number < len(owners):
            given = reprlib.repr(number)
            raise ValueError(f"number={given} of {group!r} should be from 0 to {len(owners) - 1}")
        owner = int(owners[number])
        return PageUse(
            group=group,
            number=number,
            slab=number // plan.pages_per_slab,
            first_byte=number * plan.page_stride,
            num_bytes=plan.page_stride,
            state=_STATES.get(owner, "held"),
            sequence=self.sequences[owner] if owner >= 0 else None,
        )

    def data(self) -> dict[str, Any]:
        """As plain data for JSON. Slabs and pages are runs: `[owner, how many of them]`."""
        fields = GroupUse.__slots__
        return {
            "slab_bytes": self.plan.slab_bytes,
            "num_slabs": self.plan.num_slabs,
            "free_slabs": self.num_free_slabs,
            "bytes": self.bytes,
            "bytes_by_kind": self.bytes_by_kind,
            "fragmentation": self.fragmentation,
            "shared_bytes": self.shared_bytes,
            "groups": [{name: getattr(use, name) for name in fields} for use in self.groups],
            "sequences": list(self.sequences),
            "owners": self.owners(),
            "slab_groups": _runs(self.slab_groups),
            "pages": {
                group.name: _runs(owners)
                for group, owners in zip(self.plan.groups, self.pages, strict=True)
            },
        }

    def shown(self) -> Shown:
        """A table of the groups, and one of the sequences."""
        return map_tables(self)

    def __repr__(self) -> str:
        return (
            f"<CacheMap: {self.plan.num_slabs - self.num_free_slabs} of {self.plan.num_slabs} "
            f"slabs taken, {len(self.sequences)} sequences>"
        )


def cache_map(pool: Pool, pages: SequencePages) -> CacheMap:
    """The pool now. What is in no sequence's hands and not free is cached."""
    names = tuple(pages)
    tables = [pages.tables(name) for name in names]
    numbers = {name: number for number, name in enumerate(names)} if pages.unsettled else {}
    apart = [
        (numbers[name], g, held) for name in pages.unsettled for g, held in pages.held_apart(name)
    ]
    slab_groups = np.full(pool.plan.num_slabs, NO_GROUP, np.int16)
    maps: list[Owners] = []
    for g, group in enumerate(pool.plan.groups):
        is_taken = (np.frombuffer(pool.allocator.claims(g), np.intc) != 0).view(np.uint8)
        size = group.pages_per_slab
        has_slab = _any_in_row(is_taken.reshape(pool.plan.num_slabs, size))
        slab_groups += has_slab * np.int16(g - NO_GROUP)  # sums are faster than masks
        # 0, 1 and 2: unused, free, and cached until a holder is found.
        owners = (is_taken + (has_slab if size == 1 else np.repeat(has_slab, size))).astype(
            np.int32
        )
        owners += UNUSED
        rows = [table[g].kernel_ids_from(0)[:: group.blocks_per_page] for table in tables]
        others = [(number, held) for number, of, held in apart if of == g]
        _note_holders(owners, group, rows, others)
        owners.setflags(write=False)
        maps.append(owners)
    slab_groups.setflags(write=False)
    return CacheMap(pool.plan, slab_groups, tuple(maps), names)


def _any_in_row(is_taken: UInt8[np.ndarray, "slabs pages"]) -> UInt8[np.ndarray, " slabs"]:
    """1 for each row in which there is a 1."""
    if is_taken.shape[1] > _NARROW:
        return is_taken.max(axis=1)
    return reduce(np.bitwise_or, is_taken.T)


def _note_holders(
    owners: Owners,
    group: GroupPlan,
    rows: Sequence[Int32[np.ndarray, " _"]],
    others: Sequence[tuple[int, Sequence[int]]],
) -> None:
    """Writes the sequences into the pages that they hold.

    `rows[k]` has the first kernel block of each page in the table of sequence k.
    """
    if not rows:
        return
    counts = [len(row) for row in rows]
    blocks = np.concatenate(rows)
    pages = blocks // group.blocks_per_page if group.blocks_per_page > 1 else blocks
    holders = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
    if others:
        pages = np.concatenate([pages, *(np.array(held, np.int32) for _, held in others)])
        more = [np.full(len(held), number, np.int32) for number, held in others]
        holders = np.concatenate([holders, *more])
    owners[pages] = holders
    # Where several wrote, all but the last find another's number.
    owners[pages[owners.take(pages) != holders]] = SHARED


def _use(group: GroupPlan, num_slabs: int, owners: Owners) -> GroupUse:
    shared, cached, free = (int((owners == state).sum()) for state in (SHARED, CACHED, FREE))
    in_use = int((owners >= SHARED).sum())
    used, kept = group.used_bytes(in_use), group.used_bytes(cached)
    return GroupUse(
        group=group.name,
        kind=group.kind,
        num_slabs=num_slabs,
        pages_in_use=in_use,
        pages_shared=shared,
        pages_cached=cached,
        pages_free=free,
        bytes_in_use=used,
        bytes_cached=kept,
        bytes_free=free * group.page_stride,
        bytes_padding=(in_use + cached) * group.page_stride - used - kept,
    )


def _sums(uses: Sequence[GroupUse]) -> dict[str, int]:
    names = ("in_use", "cached", "free", "padding")
    return {name: sum(getattr(use, f"bytes_{name}") for use in uses) for name in names}


def _runs(owners: Int16[np.ndarray, " _"] | Int32[np.ndarray, " _"]) -> list[list[int]]:
    """`[owner, count]` for each run of equal owners, in order."""
    if not len(owners):
        return []
    starts = np.flatnonzero(np.diff(owners, prepend=owners[:1] - 1))
    counts = np.diff(starts, append=len(owners))
    return np.stack([owners[starts], counts], axis=1).tolist()
