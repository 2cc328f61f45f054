"""The cache map once more, page by page, from the allocator's dicts and the tables."""

import json
from collections import Counter, defaultdict

import numpy as np

from hybridrt.cache.cache_map import CACHED, FREE, SHARED, UNUSED, CacheMap, cache_map
from hybridrt.cache.page_table import PhysicalId
from hybridrt.cache.pool import Pool
from hybridrt.cache.sequence_pages import SequencePages

Holders = dict[tuple[int, int], set[str]]


def holders_of(pages: SequencePages) -> Holders:
    """Which sequences hold each page: in a table, as states to start from, or to leave."""
    holders: Holders = defaultdict(set)
    for name, entry in pages._entries.items():
        for g, table in enumerate(entry.tables):
            for page in table.physical_ids:
                holders[g, page].add(name)
        place = entry.place
        if place is None:
            continue
        for export in place.exports.values():
            for g, exported in export.pages.items():
                for page in exported:
                    holders[g, page].add(name)
        if place.initial is not None and pages.prefix is not None:
            for g, kept in place.initial.pages.items():
                for page in kept:
                    holders[g, page].add(name)
    return holders


def assert_map_is_right(pool: Pool, pages: SequencePages) -> CacheMap:
    """Every slab and page, what is derived from them, and that the bytes are the pool's."""
    found, holders = cache_map(pool, pages), holders_of(pages)
    names = list(pages)
    assert found.sequences == tuple(names)
    slabs = [-1] * pool.plan.num_slabs
    own: Counter[tuple[str, int]] = Counter()
    for g, group in enumerate(pool.plan.groups):
        counts: Counter[int] = Counter()
        held = set(pool.allocator.slabs_of(g))
        claims = pool.allocator.claims(g)
        assert len(found.pages[g]) == pool.plan.num_slabs * group.pages_per_slab
        for slab in held:
            assert slabs[slab] == -1
            slabs[slab] = g
        for page, owner in enumerate(found.pages[g].tolist()):
            who = holders.get((g, page), set())
            if page // group.pages_per_slab not in held:
                expected = UNUSED
            elif not claims[page]:
                expected = FREE
            elif not pool.allocator.references(g, PhysicalId(page)):
                expected = CACHED
                assert not who
            elif len(who) > 1:
                expected = SHARED
            else:
                expected = names.index(*who)
                own[names[expected], g] += 1
            assert owner == expected, (group.name, page)
            counts[min(owner, 0)] += 1
        use = found.groups[g]
        shared, cached, free = counts[SHARED], counts[CACHED], counts[FREE]
        in_use = counts[0] + shared
        assert (use.pages_in_use, use.pages_shared) == (in_use, shared)
        assert (use.pages_cached, use.pages_free) == (cached, free)
        assert in_use == pool.allocator.num_live_pages(g)
        assert cached == pool.allocator.num_cached_pages(g)
        assert free == pool.allocator.num_free_pages(g)
        total = use.bytes_in_use + use.bytes_cached + use.bytes_free + use.bytes_padding
        assert total == use.num_slabs * pool.plan.slab_bytes == len(held) * pool.plan.slab_bytes
    assert found.slab_groups.tolist() == slabs
    assert sum(found.bytes.values()) == pool.plan.pool_bytes
    groups = pool.plan.groups
    assert found.owners() == {
        name: sum(group.used_bytes(own[name, g]) for g, group in enumerate(groups))
        for name in names
    }
    assert sum(found.owners().values()) + found.shared_bytes == found.bytes["in_use"]
    assert_parts_fit_the_whole(found)
    return found


def assert_parts_fit_the_whole(found: CacheMap) -> None:
    sizes, kinds = found.bytes, found.bytes_by_kind.values()
    for name in ("in_use", "cached", "free", "padding"):
        assert sizes[name] == sum(kind[name] for kind in kinds)
    free = sizes["free"] + sizes["free_slabs"]
    assert found.fragmentation == (sizes["free"] / free if free else 0)
    data = json.loads(json.dumps(found.data()))
    for group, owners in zip(found.plan.groups, found.pages, strict=True):
        runs = data["pages"][group.name]
        assert np.array_equal(np.repeat(*np.array(runs).reshape(-1, 2).T), owners)
