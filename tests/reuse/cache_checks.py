"""What must hold of a prefix cache at any time between two steps, looked up in all of it."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from hybridrt.cache.page_table import PhysicalId, to_kernel_ids
from hybridrt.cache.place import Place
from hybridrt.cache.prefix import PrefixCache
from hybridrt.cache.prefix_tree import TOKEN_BYTES, Checkpoint, Node
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.slabs import KEPT
from tests.engine.page_reader import History, PageReader

Page = tuple[int, PhysicalId]


def prefix_of(pages: SequencePages) -> PrefixCache:
    assert pages.prefix is not None
    return pages.prefix


def nodes(prefix: PrefixCache) -> Iterator[Node]:
    """All nodes, each behind its parent."""
    found = [*prefix._roots.values()]
    while found:
        node = found.pop()
        yield node
        found += node.children.values()


def branches(prefix: PrefixCache) -> Iterator[Place]:
    """All places that are folded, of sequences that run or have ended."""
    for node in nodes(prefix):
        yield from node.branches.values()


def folded(place: Place) -> list[Checkpoint]:
    """The checkpoints that a folded place has."""
    return [checkpoint for checkpoint in place.folded if not checkpoint.is_dropped]


def checkpoints(prefix: PrefixCache) -> Iterator[Checkpoint]:
    for node in nodes(prefix):
        yield from node.checkpoints.values()
    for place in branches(prefix):
        yield from folded(place)


def places(pages: SequencePages) -> Iterator[Place]:
    for entry in pages._entries.values():
        if entry.place is not None:
            yield entry.place


def pages_of_node(prefix: PrefixCache, node: Node) -> Iterator[Page]:
    if node.parent is not None:
        for (g, _), column in zip(prefix.token_groups, node.columns, strict=True):
            yield from ((g, page) for page in column if page is not None)


def pages_of_checkpoint(prefix: PrefixCache, checkpoint: Checkpoint) -> Iterator[Page]:
    for g, pages in checkpoint.pages.items():
        for page in pages:
            yield g, page


def tokens_to(node: Node) -> list[int]:
    """The tokens up to the end of a node."""
    parts: list[bytes] = []
    at: Node | None = node
    while at is not None:
        parts.append(at.tokens)
        at = at.parent
    return np.frombuffer(b"".join(reversed(parts)), np.int32).tolist()


def assert_tree_is_sound(pages: SequencePages) -> None:
    """Counts are right, what is there can be reached, and nothing is counted that isn't there."""
    prefix, size = prefix_of(pages), prefix_of(pages).page_size
    ended = [place for place in branches(prefix) if place.pages is not None]
    standing = Counter(id(place.node) for place in [*places(pages), *ended])
    num_nodes = num_pages = num_ghosts = 0
    for node in nodes(prefix):
        assert node.num_cached_children == sum(n.num_cached > 0 for n in node.children.values())
        assert node.users == standing[id(node)]
        behind = node.users or node.checkpoints or node.num_cached_children
        _assert_branches_are_sound(pages, node)
        assert node.is_whole or not behind, "no hit reaches what is behind this node"
        for tail, checkpoint in node.checkpoints.items():
            assert checkpoint.node is node and checkpoint.tail == tail
            assert len(tail) < size * TOKEN_BYTES
            assert not checkpoint.is_dropped
        if node.parent is None:
            assert node.end == node.length == node.num_cached == 0
            continue
        num_nodes += 1
        num_pages += node.num_cached
        num_ghosts += node.end - node.first - node.num_cached
        assert node.parent.children[node.tokens[: size * TOKEN_BYTES]] is node
        assert node.first == node.parent.end < node.end and node.salt == node.parent.salt
        assert node.length == node.end * size
        assert len(node.tokens) == (node.end - node.first) * size * TOKEN_BYTES
        assert node.is_whole == (id(node) not in prefix._ghosts)
        assert node.wanted <= {*range(node.first, node.end)}
        for (_, plan), column in zip(prefix.token_groups, node.columns, strict=True):
            assert len(column) == node.num_cached
            assert None not in column or plan.window is not None
    gone = [place for place in branches(prefix) if id(place) in prefix._ghosts]
    num_pages += sum(place.num_pages(size) for place in ended)
    num_ghosts += sum(place.num_pages(size) for place in gone)
    assert prefix.num_nodes == num_nodes
    assert prefix.num_pages == num_pages
    assert prefix._num_ghosts == num_ghosts
    assert prefix.num_checkpoints == sum(1 for _ in checkpoints(prefix))


def _assert_branches_are_sound(pages: SequencePages, node: Node) -> None:
    prefix, running = prefix_of(pages), [*places(pages)]
    half = prefix.page_size // 2
    for key, place in node.branches.items():
        assert place.node is node and place.key == key and len(key) == half * TOKEN_BYTES
        assert place.prompt[node.length * TOKEN_BYTES :].startswith(key)
        assert all(one.position >= node.length + half for one in folded(place))
        is_gone = id(place) in prefix._ghosts
        assert is_gone == (place.pages is None and place not in running)
        assert not (is_gone and folded(place))
        if place.pages is not None:
            assert place not in running and folded(place)[-1].position == place.num_tokens
            assert place.pages.keys() == {g for g, _ in prefix.token_groups}
            for own in place.pages.values():
                assert len(own) == -(-place.num_tokens // prefix.page_size) - node.end


def assert_pins_are_right(pages: SequencePages) -> None:
    """Checkpoints that a sequence is about to read from are there, and pinned for it alone."""
    starts = [place.initial for place in places(pages) if place.initial is not None]
    pins = Counter(map(id, starts))
    for checkpoint in checkpoints(prefix_of(pages)):
        assert checkpoint.num_pins == pins[id(checkpoint)]


def assert_pages_are_counted(pages: SequencePages) -> None:
    """Each page is kept and held as often as anyone has it; the rest of the pool is free."""
    prefix, allocator = prefix_of(pages), pages._pool.allocator
    kept: Counter[Page] = Counter()
    for node in nodes(prefix):
        kept.update(pages_of_node(prefix, node))
    for checkpoint in checkpoints(prefix):
        kept.update(pages_of_checkpoint(prefix, checkpoint))
    for place in branches(prefix):
        kept.update((g, page) for g, own in (place.pages or {}).items() for page in own)
    held = holders(pages)
    for g, group in enumerate(pages._pool.plan.groups):
        own = allocator._groups[g]
        expected = [0] * len(own.claims)
        for of, page in held | kept:
            if of == g:
                expected[page] = KEPT * kept[of, page] + held[of, page]
        assert own.claims.tolist() == expected
        live, cached = allocator.num_live_pages(g), allocator.num_cached_pages(g)
        room = len(allocator.slabs_of(g)) * group.pages_per_slab
        assert live + cached + allocator.num_free_pages(g) == room
    num_slabs = sum(len(allocator.slabs_of(g)) for g in range(len(pages._pool.plan.groups)))
    assert allocator.num_free_slabs + num_slabs == allocator.num_slabs


def holders(pages: SequencePages) -> Counter[Page]:
    """How many hold each page: tables, sequences that start from it, and exports."""
    held: Counter[Page] = Counter()
    for name in pages:
        for g, table in enumerate(pages.tables(name)):
            held.update((g, page) for page in table.physical_ids)
    for place in places(pages):
        states = [export.pages for export in place.exports.values()]
        states += [place.initial.pages] if place.initial is not None else []
        for copies in states:
            for g, own in copies.items():
                held.update((g, page) for page in own)
    return held


def assert_structures_are_bounded(pages: SequencePages) -> None:
    """Lines of what could be dropped have a few places for each thing that is there."""
    prefix = prefix_of(pages)
    plan = pages._pool.plan
    num_pages = sum(plan.num_slabs * group.pages_per_slab for group in plan.groups)
    assert len(prefix._leaves) <= 64 + 4 * (prefix.num_nodes + 1)
    in_line = [(rank, one) for rank, line in enumerate(prefix._lines) for one in line]
    assert {id(one) for _, one in in_line} == {id(one) for one in checkpoints(prefix)}
    assert len(in_line) == prefix.num_checkpoints
    assert all(one.rank == rank for rank, one in in_line)
    assert len(prefix.windows.behind) + len(prefix.windows.last) <= 2 * num_pages
    gone = sum(1 for place in branches(prefix) if id(place) in prefix._ghosts)
    assert len(prefix._roots) <= 1 + prefix.num_nodes + gone + prefix.num_checkpoints + len(pages)


def assert_everything_can_be_had(pages: SequencePages) -> None:
    """Whatever is said to have room has room, if all that nobody uses is dropped for it."""
    allocator, groups = pages._pool.allocator, pages._pool.plan.groups
    for g, group in enumerate(groups):
        counts = [0] * len(groups)
        counts[g] = allocator.num_slabs * group.pages_per_slab - allocator.num_live_pages(g)
        while not allocator.can_allocate(counts):
            counts[g] -= 1
        for of, taken in enumerate(pages._allocate(counts)):
            pages._pool.release(of, taken)


def assert_contents_are_right(reader: PageReader) -> None:
    """Every page of every node has its tokens, and every checkpoint the states behind them."""
    prefix = prefix_of(reader.pages)
    for node in nodes(prefix):
        tokens = tokens_to(node)
        for index in range(node.num_cached):
            start = (node.first + index) * prefix.page_size
            known = tokens[: start + prefix.page_size]
            _assert_tokens(reader, known, start, [column[index] for column in node.columns])
        for checkpoint in node.checkpoints.values():
            tail = np.frombuffer(checkpoint.tail, np.int32).tolist()
            history = History([*tokens, *tail], reader.layers)
            if tail:
                partial = [checkpoint.pages.get(g, [None])[0] for g, _ in prefix.token_groups]
                _assert_tokens(reader, history.token_ids, node.length, partial)
            _assert_states(reader, history, checkpoint)
    for place in branches(prefix):
        _assert_branch(reader, place)


def _assert_branch(reader: PageReader, place: Place) -> None:
    prompt = np.frombuffer(place.prompt, np.int32).tolist()
    tokens = [*prompt, *place.output][: place.num_tokens]
    for checkpoint in folded(place):
        history = History(tokens[: checkpoint.position], reader.layers)
        _assert_states(reader, history, checkpoint)
    size, first = prefix_of(reader.pages).page_size, place.node.end
    for start in range(first * size, place.num_tokens if place.pages else 0, size):
        assert place.pages is not None
        column = [own[start // size - first] for own in place.pages.values()]
        _assert_tokens(reader, tokens[: start + size], start, [*column])


def _assert_states(reader: PageReader, history: History, checkpoint: Checkpoint) -> None:
    names = [group.name for group in reader.pool.plan.groups]
    for row in reader.model.rows:
        g = names.index(row.group)
        if reader.pool.plan.groups[g].page_size is None:
            state = reader.model.read_state(row.index, checkpoint.pages[g][row.part])
            assert state == history.state(row.index, checkpoint.position)


def _assert_tokens(
    reader: PageReader, tokens: list[int], start: int, pages: list[PhysicalId | None]
) -> None:
    """Tokens from `start` on, of which each token group has a page."""
    for (_, group), page in zip(prefix_of(reader.pages).token_groups, pages, strict=False):
        if page is None:
            continue
        blocks = to_kernel_ids([page], group.blocks_per_page).array
        skipped = start // (group.page_size or 1) * group.blocks_per_page
        for row in reader.model.rows:
            if row.group == group.name:
                found = reader.model.read_tokens(row.index, blocks, start, len(tokens), skipped)
                assert found.tolist() == tokens[start:]


def assert_all(reader: PageReader) -> None:
    """All of the above that changes nothing."""
    assert_tree_is_sound(reader.pages)
    assert_pins_are_right(reader.pages)
    assert_pages_are_counted(reader.pages)
    assert_structures_are_bounded(reader.pages)
    assert_contents_are_right(reader)
