"""What one sequence takes from the prefix cache, and what it leaves there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from hybridrt.cache.finder import Match, Missing
from hybridrt.cache.page_table import PageTable, PhysicalId
from hybridrt.cache.pool import PageCopy, Pool
from hybridrt.cache.prefix import PrefixCache
from hybridrt.cache.prefix_tree import (
    SUPERSEDED,
    TOKEN_BYTES,
    USEFUL,
    Checkpoint,
    Column,
    Node,
    token_bytes,
)
from hybridrt.cache.slabs import OutOfPages

StateCopies = dict[int, list[PhysicalId]]
"""Pages for all parts of a sequence's states, by state group."""


class Exports(NamedTuple):
    """Positions at which a sequence's states are to be left in the cache, the most wanted first.

    No position comes twice. For those that are `regular`, and not known to be of use, nothing
    else is dropped.
    """

    wanted: Sequence[int] = ()
    regular: Sequence[int] = ()


NO_EXPORTS = Exports()


@dataclass(slots=True)
class Export:
    """Pages into which the states at a position are to be written, and their rank as such."""

    pages: StateCopies
    rank: int


PAGES_AT_A_TIME = 8  # of a sequence's own output, which others ask for when it has ended


@dataclass(slots=True)
class Place:
    """Where a sequence stands in the prefix cache.

    Its pages up to `node` are there. It begins with the states of `initial` at its next
    step; `earlier` are the checkpoints that it began with and has left since. It is about to
    compute the page `missing`, and has when so many tokens are committed as that says.
    `prompt` are the tokens that it came with; those behind them are its own.
    """

    node: Node
    initial: Checkpoint | None
    prompt: bytes = b""
    earlier: list[Checkpoint] = field(default_factory=list)
    exports: dict[int, Export] = field(default_factory=dict)
    missing: Missing | None = None


class Reuse:
    """Takes pages from the prefix cache for sequences, and gives it what they computed."""

    def __init__(self, pool: Pool, prefix: PrefixCache) -> None:
        self.prefix = prefix
        self._pool = pool
        self._groups = pool.plan.groups
        self._states = [g for g, _ in prefix.state_groups]
        self._parts = [(g, group.parts) for g, group in prefix.state_groups]
        self._parts_of_group = [g.parts if g.page_size is None else 0 for g in self._groups]
        self.has_states = bool(self._states)
        self._in_flight: set[Missing] = set()
        self.num_twins = 0
        """Pages of sequences that were replaced by others with the same tokens."""

    def is_coming(self, match: Match) -> bool:
        """Whether a sequence that runs is about to compute the first page that is missing."""
        return match.missing in self._in_flight

    def shared_pages(self, match: Match) -> list[list[PhysicalId]]:
        """Per group, the pages of a hit that a sequence reads where they are, in token order."""
        shared: list[list[PhysicalId]] = [[] for _ in self._groups]
        for slot, (g, plan) in enumerate(self.prefix.token_groups if match.position else ()):
            first = plan.first_kept(match.position) // self.prefix.page_size
            pages = match.pages(slot, first, match.position // self.prefix.page_size)
            assert None not in pages, "a hit has all the pages that it needs"
            shared[g] = cast(list[PhysicalId], pages)
        return shared

    def retain(self, match: Match) -> list[list[PhysicalId]]:
        """Holds `shared_pages`, so that they stay, and those of the match's checkpoint."""
        shared = self.shared_pages(match)
        for g, pages in self._held(match, shared):
            self._pool.allocator.retain(g, pages)
        return shared

    def release(self, match: Match, shared: list[list[PhysicalId]]) -> None:
        """Undoes `retain`."""
        for g, pages in self._held(match, shared):
            self._pool.release(g, pages)

    def _held(
        self, match: Match, shared: list[list[PhysicalId]]
    ) -> Iterator[tuple[int, list[PhysicalId]]]:
        """The pages that a match is about, with those of its checkpoint, by group."""
        yield from ((g, pages) for g, pages in enumerate(shared) if pages)
        if match.checkpoint is not None:
            yield from self.prefix.pages_of(match.checkpoint)

    def begin(self, match: Match, salt: str | None) -> Place:
        """The place of a sequence that begins with a match, whose pages it has retained.

        Those of the checkpoint it holds until its first step is over.
        """
        checkpoint, missing = match.checkpoint, match.missing
        place = Place(self.prefix.begin(match, salt), checkpoint, match.data)
        if checkpoint is not None:
            place.earlier.append(checkpoint)
        if missing is not None:
            self._in_flight.add(missing)
            place.missing = missing
        return place

    def begin_apart(self, salt: str | None) -> Place:
        """The place of a sequence whose pages are its own, though it has tokens already."""
        return Place(self.prefix.begin(None, salt), None)

    def take_partial(self, place: Place, fresh: list[list[PhysicalId]]) -> None:
        """Copies the tokens of a page that the hit has a part of into the first of each group."""
        if place.initial is not None and place.initial.tail:
            pages = zip(self.prefix.token_groups, place.initial.partial, strict=True)
            self._pool.copy(
                PageCopy(g, page, fresh[g][0]) for (g, _), page in pages if page is not None
            )

    def fork(self, place: Place) -> Place:
        """The place of another sequence with the same committed tokens, whose pages it holds."""
        assert place.initial is None, "its first step isn't over"
        self.prefix.join(place.node)
        return Place(place.node, None)

    def next_event(self, place: Place) -> int:
        """The number of committed tokens from which on `publish` does something."""
        if place.initial is not None or place.exports or place.missing is not None:
            return 0
        next_page = place.node.length + self.prefix.page_size
        if next_page * TOKEN_BYTES <= len(place.prompt):
            return next_page
        return place.node.length + PAGES_AT_A_TIME * self.prefix.page_size

    def publish(
        self, place: Place, tables: Sequence[PageTable], tokens: Sequence[int], num_tokens: int
    ) -> None:
        """Gives the cache all full pages of the first `num_tokens` tokens, and the exports."""
        if place.initial is not None:
            self._forget_initial(place)
        count = (num_tokens - place.node.length) // self.prefix.page_size
        if count > 0:
            self._publish_pages(place, tables, tokens, count)
        if place.missing is not None and num_tokens >= place.missing[1]:
            self._arrive(place)
        if place.exports:
            self._publish_states(place, tables, tokens, num_tokens)

    def _publish_pages(
        self, place: Place, tables: Sequence[PageTable], tokens: Sequence[int], count: int
    ) -> None:
        first, size = place.node.end, self.prefix.page_size
        page_bytes = size * TOKEN_BYTES
        end = (first + count) * page_bytes
        if end <= len(place.prompt):
            data = place.prompt[first * page_bytes : end]
        else:
            data = token_bytes(tokens[first * size : (first + count) * size])
        columns = [_pages_of(tables[g], first, count) for g, _ in self.prefix.token_groups]
        while data:
            node = self.prefix.follow(place.node, data, columns)
            if node is None:
                place.node = self.prefix.append(place.node, data, columns)
                return
            place.node = node
            followed = node.end - node.first
            for (g, _), there, own in zip(
                self.prefix.token_groups, node.columns, columns, strict=True
            ):
                if there != own[:followed]:
                    self._share_twins(tables[g], g, node.first, there, own)
            data = data[len(node.tokens) :]
            columns = [column[followed:] for column in columns]

    def _publish_states(
        self, place: Place, tables: Sequence[PageTable], tokens: Sequence[int], num_tokens: int
    ) -> None:
        due = [position for position in place.exports if position <= num_tokens]
        due.sort()
        for position, node in zip(due, self._nodes_before(place.node, due), strict=True):
            export = place.exports[position]
            if position == num_tokens:  # the step ended here, so it is the sequence's own state
                own = [(g, tables[g].physical_ids) for g in self._states]
                self._pool.copy(
                    PageCopy(g, source, target)
                    for g, sources in own
                    for source, target in zip(sources, export.pages[g], strict=True)
                )
            self._leave(place, node, tables, tokens, position, export.pages, export.rank)
        exported = [place.exports.pop(position) for position in due]
        for g in self._states:
            self._pool.release(g, [page for export in exported for page in export.pages[g]])

    def _share_twins(
        self, table: PageTable, group: int, first: int, there: Column, own: Column
    ) -> None:
        """Lets a sequence have the pages that were there instead of its own of the same tokens."""
        for number, (page, twin) in enumerate(zip(there, own, strict=False), first):
            if page is not None and twin is not None and page != twin:
                self._pool.allocator.retain(group, [page])
                self.num_twins += 1
                table.set(number - table.num_released, page)
                self._pool.release(group, [twin])

    def leave_behind(self, place: Place, group: int, pages: range, *, at_end: bool = False) -> None:
        """Notes that pages of a window, by number in token order, are seen no more."""
        slot = next(s for s, (g, _) in enumerate(self.prefix.token_groups) if g == group)
        for node in place.node.to_root():
            if node.end <= pages.start:
                return
            for number in range(max(pages.start, node.first), min(pages.stop, node.end)):
                self.prefix.left_behind(node, slot, number, at_end=at_end)

    def donate(
        self, place: Place, tables: Sequence[PageTable], tokens: Sequence[int], num_tokens: int
    ) -> None:
        """Leaves the pages and states of a sequence that ends, of the tokens it has computed."""
        if place.initial is not None or not num_tokens:
            return
        self.publish(place, tables, tokens, num_tokens)
        if not self._states:
            return
        states = {g: list(tables[g].physical_ids) for g in self._states}
        node = self.prefix.node_before(place.node, num_tokens // self.prefix.page_size)
        self._leave(place, node, tables, tokens, num_tokens, states, USEFUL)
        self._supersede(place, num_tokens)

    def keep_states(
        self, place: Place, tables: Sequence[PageTable], tokens: Sequence[int], num_tokens: int
    ) -> None:
        """Leaves a copy of the states of a sequence that goes on later, in pages that are free."""
        self.publish(place, tables, tokens, num_tokens)
        if self.has_states:
            self.reserve(place, [num_tokens], rank=USEFUL, only_idle=True)
        if place.exports:
            self._publish_states(place, tables, tokens, num_tokens)
            self._supersede(place, num_tokens)

    def _supersede(self, place: Place, num_tokens: int) -> None:
        for checkpoint in place.earlier:
            if checkpoint.position < num_tokens:
                self.prefix.supersede(checkpoint)

    def end(self, place: Place) -> None:
        """Takes a sequence out of the cache; its pages have been released."""
        self._forget_initial(place)
        self.rest(place)
        self.prefix.end(place.node)

    def rest(self, place: Place) -> None:
        """Lets nobody wait for a sequence that computes nothing for now."""
        self._arrive(place)
        self.forget_exports(place)

    def forget_exports(self, place: Place) -> None:
        """Gives back the pages of states that are still to be left."""
        for export in place.exports.values():
            for g, pages in export.pages.items():
                self._pool.release(g, pages)
        place.exports.clear()

    def held_by(self, place: Place) -> list[tuple[int, list[PhysicalId]]]:
        """Pages by group of the states that a sequence starts from, and of those to be left."""
        held = [] if place.initial is None else self.prefix.pages_of(place.initial)
        return held + [pages for one in place.exports.values() for pages in one.pages.items()]

    def pages_for(self, exports: Exports) -> list[int]:
        """Pages of each group for the states at all these positions, as far as they may be kept."""
        count, most = len(exports.wanted) + len(exports.regular), self.prefix.most_checkpoints
        if most is not None and count > most:
            count = 0
        return [count * parts for parts in self._parts_of_group]

    def export(
        self, place: Place, exports: Exports, pages: list[list[PhysicalId]] | None = None
    ) -> None:
        """Takes pages for the states at these positions, which next steps leave in the cache.

        As many as there are. With `pages` those of all positions have been allocated.
        """
        if pages is not None:
            self._hold(place, exports.wanted, USEFUL, pages)
            self._hold(place, exports.regular, SUPERSEDED, pages, len(exports.wanted))
        elif self.has_states:
            self.reserve(place, exports.wanted, rank=USEFUL, only_idle=False)
            self.reserve(place, exports.regular, rank=SUPERSEDED, only_idle=True)

    def _hold(
        self,
        place: Place,
        positions: Sequence[int],
        rank: int,
        pages: list[list[PhysicalId]],
        first: int = 0,
    ) -> None:
        """Notes the positions' pages: in each group those of the first one, and so on."""
        for index, position in enumerate(positions, first):
            assert position not in place.exports, position
            own = {g: pages[g][index * parts : (index + 1) * parts] for g, parts in self._parts}
            place.exports[position] = Export(own, rank)

    def reserve(
        self, place: Place, positions: Sequence[int], *, rank: int, only_idle: bool
    ) -> None:
        """Takes pages for the states at positions that next steps will pass, while there are any.

        With `only_idle` nothing else is dropped for them.
        """
        if not positions:
            return
        most = self.prefix.most_checkpoints
        wanted = [p for p in dict.fromkeys(positions) if p not in place.exports]
        if most is not None:
            wanted = wanted[: max(0, most - len(place.exports))]
        while wanted:
            counts = [len(wanted) * parts for parts in self._parts_of_group]
            try:
                pages = self._pool.allocate(counts)
            except OutOfPages:
                if only_idle or not self._pool.can_allocate(counts):
                    wanted.pop()
                else:
                    self.prefix.make_room(counts)
                continue
            self._hold(place, wanted, rank, pages)
            return

    def _nodes_before(self, node: Node, positions: Sequence[int]) -> list[Node]:
        """For each of these positions in order, the last node up to there on the way to a node."""
        nodes: list[Node] = []
        for position in reversed(positions):
            node = self.prefix.node_before(node, position // self.prefix.page_size)
            nodes.append(node)
        return nodes[::-1]

    def _leave(
        self,
        place: Place,
        node: Node,
        tables: Sequence[PageTable],
        tokens: Sequence[int],
        position: int,
        states: StateCopies,
        rank: int,
    ) -> None:
        size = self.prefix.page_size
        if node.length + size <= position:
            return  # not published so far: nothing would find it
        tail = token_bytes(tokens[node.length : position]) if node.length < position else b""
        groups = self.prefix.token_groups
        partial = [_page_at(tables[g], position // size) if tail else None for g, _ in groups]
        checkpoint = self.prefix.add_checkpoint(node, tail, states, partial, rank)
        if checkpoint is not None:
            place.earlier.append(checkpoint)

    def _forget_initial(self, place: Place) -> None:
        if place.initial is not None:
            for g, pages in self.prefix.pages_of(place.initial):
                self._pool.release(g, pages)
            self.prefix.unpin(place.initial)
            place.initial = None

    def _arrive(self, place: Place) -> None:
        if place.missing is not None:
            self._in_flight.discard(place.missing)
            place.missing = None


def _page_at(table: PageTable, index: int) -> PhysicalId | None:
    """The page of that number in token order, if the sequence still has it."""
    place, pages = index - table.num_released, table.physical_ids
    return pages[place] if 0 <= place < len(pages) else None


def _pages_of(table: PageTable, first: int, count: int) -> Column:
    """The pages `first` to `first + count - 1` in token order; None: released already."""
    begin = first - table.num_released
    if begin >= 0:
        return [*table.physical_ids[begin : begin + count]]
    missing = min(-begin, count)
    return [*[None] * missing, *table.physical_ids[: count - missing]]
