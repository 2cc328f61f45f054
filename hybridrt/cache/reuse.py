"""What one sequence takes from the prefix cache, and what it leaves there."""

from collections.abc import Iterator, Sequence
from typing import cast

from hybridrt.cache.finder import Match, Missing
from hybridrt.cache.page_table import PageTable, PhysicalId
from hybridrt.cache.place import Export, Exports, Place
from hybridrt.cache.plan import UNENDING
from hybridrt.cache.pool import PageCopy, Pool
from hybridrt.cache.prefix import PrefixCache
from hybridrt.cache.prefix_tree import (
    SUPERSEDED,
    TOKEN_BYTES,
    USEFUL,
    Column,
    PagesOfGroups,
    token_bytes,
)

PAGES_AT_A_TIME = 8  # of a sequence's own output, which others ask for when it has ended


class Reuse:
    """Takes pages from the prefix cache for sequences, and gives it what they computed."""

    def __init__(self, pool: Pool, prefix: PrefixCache) -> None:
        self.prefix = prefix
        prefix.unfold = self.unfold
        self._least_key = prefix.page_size // 2  # tokens
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
            yield from match.checkpoint.pages.items()

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
            pages = place.initial.pages
            self._pool.copy(
                PageCopy(g, pages[g][0], fresh[g][0])
                for g, _ in self.prefix.token_groups
                if g in pages
            )

    def take_states(self, place: Place, fresh: list[list[PhysicalId]]) -> None:
        """Copies the states of a checkpoint into a sequence's own pages, from which it starts then.

        With one token left to compute its first step is as any decode's, which may be recorded.
        """
        if place.initial is not None:
            self._pool.copy(
                PageCopy(g, source, target)
                for g in self._states
                for source, target in zip(place.initial.pages[g], fresh[g], strict=True)
            )
            place.has_states = True

    def fold(self, place: Place, match: Match, tables: Sequence[PageTable]) -> None:
        """Folds a sequence that begins, if nothing was ever seen that begins like it.

        Whoever has less than its key in common with it finds nothing in it: no page, and no
        state, since none is left before the key's end.
        """
        node, prompt = place.node, place.prompt
        first = node.length + self._least_key
        if not self.prefix.can_fold or match.matched > node.length or not self._least_key:
            return
        if len(prompt) // TOKEN_BYTES <= first or min(place.exports, default=first) < first:
            return
        key = prompt[node.length * TOKEN_BYTES : first * TOKEN_BYTES]
        if key not in node.branches:
            place.key, place.tables = key, tables
            node.add_branch(place)

    def unfold(self, place: Place) -> None:
        """Takes a folded sequence into the tree, as if it had never been folded."""
        del place.node.branches[place.key]
        place.key = b""
        place.prompt += token_bytes(place.output)
        if place.pages is not None:
            tables = self._hold_again(place)
            self._unfold(place, tables)
            for g, table in enumerate(tables):
                self._pool.release(g, table.resize(0))
            self.prefix.end(place.node)
        elif place.tables:
            self._unfold(place, place.tables)
        else:
            self.prefix.remember(place)

    def _hold_again(self, place: Place) -> list[PageTable]:
        """Tables of the pages with which a place was laid by, and which are in use now."""
        tables = [PageTable(group.blocks_per_page) for group in self._groups]
        for g, pages in (place.pages or {}).items():
            self._pool.allocator.retain(g, pages)
            tables[g].append(pages)
            tables[g].num_released = place.node.end
        self.prefix.take_up(place)
        return tables

    def _unfold(self, place: Place, tables: Sequence[PageTable]) -> None:
        size, folded = self.prefix.page_size, place.folded
        num_tokens = min(place.num_tokens, len(place.prompt) // TOKEN_BYTES)
        count = num_tokens // size - place.node.end
        if count > 0:
            self._publish_pages(place, tables, (), count)
        for checkpoint in folded:
            page = checkpoint.position // size
            node = self.prefix.node_before(place.node, page)
            if checkpoint.is_dropped:
                node.lost_checkpoint = True
                continue
            tail = place.token_bytes((), node.length, checkpoint.position)
            partial = self._page_of(tables, page) if tail else {}
            self.prefix.attach(checkpoint, node, tail, partial)

    def _page_of(self, tables: Sequence[PageTable], page: int) -> PagesOfGroups:
        """The page of that number in each token group that has it."""
        pages: PagesOfGroups = {}
        for g, _ in self.prefix.token_groups:
            place_in_table = page - tables[g].num_released
            if 0 <= place_in_table < len(tables[g]):
                pages[g] = [tables[g].physical_ids[place_in_table]]
        return pages

    def fork(self, place: Place) -> Place:
        """The place of another sequence with the same committed tokens, whose pages it holds."""
        assert place.initial is None, "its first step isn't over"
        self._let_see(place)
        self.prefix.join(place.node)
        return Place(place.node, None)

    def next_event(self, place: Place) -> int:
        """The number of committed tokens from which on `publish` does something."""
        if place.initial is not None or place.exports or place.missing is not None:
            return 0
        if place.key:
            return 0 if place.num_tokens * TOKEN_BYTES < len(place.prompt) else UNENDING
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
        place.num_tokens = num_tokens
        if not place.key:
            count = (num_tokens - place.node.length) // self.prefix.page_size
            if count > 0:
                self._publish_pages(place, tables, tokens, count)
        if place.missing is not None and num_tokens >= place.missing[1]:
            self._arrive(place, place.missing)
        if place.exports:
            self._publish_states(place, tables, tokens, num_tokens)

    def _publish_pages(
        self, place: Place, tables: Sequence[PageTable], tokens: Sequence[int], count: int
    ) -> None:
        first, size = place.node.end, self.prefix.page_size
        data = place.token_bytes(tokens, first * size, (first + count) * size)
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
        for position in sorted([p for p in place.exports if p <= num_tokens]):
            export = place.exports.pop(position)
            if position == num_tokens:  # the step ended here, so it is the sequence's own state
                own = [(g, tables[g].physical_ids) for g in self._states]
                self._pool.copy(
                    PageCopy(g, source, target)
                    for g, sources in own
                    for source, target in zip(sources, export.pages[g], strict=True)
                )
            if place.key:
                self.prefix.add_folded(place, position, export.pages, export.rank)
            else:
                self._leave(place, tables, tokens, position, export.pages, export.rank)
            for g, pages in export.pages.items():
                self._pool.release(g, pages)

    def _share_twins(
        self, table: PageTable, group: int, first: int, there: Column, own: Column
    ) -> None:
        """Lets a sequence have the pages that were there instead of its own of the same tokens."""
        twins = [
            (number, page, twin)
            for number, (page, twin) in enumerate(zip(there, own, strict=False), first)
            if page is not None and twin is not None and page != twin
        ]
        self._pool.allocator.retain(group, [page for _, page, _ in twins])
        for number, page, _ in twins:
            table.set(number - table.num_released, page)
        self._pool.release(group, [twin for _, _, twin in twins])
        self.num_twins += len(twins)

    def leave_behind(self, place: Place, group: int, pages: range, *, at_end: bool = False) -> None:
        """Notes that pages of a window, by number in token order, are seen no more."""
        slot = next(s for s, (g, _) in enumerate(self.prefix.token_groups) if g == group)
        for node in place.node.to_root():
            if node.end <= pages.start:
                return
            for number in range(max(pages.start, node.first), min(pages.stop, node.end)):
                self.prefix.windows.leave(node, slot, number, at_end=at_end)

    def donate(
        self, place: Place, tables: Sequence[PageTable], tokens: Sequence[int], num_tokens: int
    ) -> bool:
        """Leaves the pages and states of a sequence that ends, of the tokens it has computed.

        Returns whether the place stays, since it is folded.
        """
        if place.initial is not None or not num_tokens:
            return False
        self.publish(place, tables, tokens, num_tokens)
        if not self._states:
            return False
        states = {g: tables[g].physical_ids[:] for g in self._states}
        stays = bool(place.key) and num_tokens >= place.node.length + self._least_key
        if stays and self.prefix.add_folded(place, num_tokens, states, USEFUL):
            self._lay_by(place, tables, tokens, num_tokens)
        else:
            self._let_see(place)
            self._leave(place, tables, tokens, num_tokens, states, USEFUL)
            stays = False
        self._supersede(place, num_tokens)
        return stays

    def _lay_by(
        self, place: Place, tables: Sequence[PageTable], tokens: Sequence[int], num_tokens: int
    ) -> None:
        """Leaves a sequence folded that ends."""
        self.rest(place)
        place.output = tokens[len(place.prompt) // TOKEN_BYTES : num_tokens]
        first, end = place.node.end, -(-num_tokens // self.prefix.page_size)
        own = {g: tables[g].physical_ids[first:end] for g, _ in self.prefix.token_groups}
        self.prefix.lay_by(place, own)

    def _let_see(self, place: Place) -> None:
        """Unfolds a place that is folded."""
        if place.key:
            self.unfold(place)

    def keep_states(
        self, place: Place, tables: Sequence[PageTable], tokens: Sequence[int], num_tokens: int
    ) -> None:
        """Leaves a copy of the states of a sequence that goes on later, in pages that are free."""
        self._let_see(place)
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
        """Takes a sequence out of the cache, whose pages are about to be released."""
        self._let_see(place)
        if place.initial is not None:
            self._forget_initial(place)
        self.rest(place)
        self.prefix.end(place.node)

    def rest(self, place: Place) -> None:
        """Lets nobody wait for a sequence that computes nothing for now."""
        if place.missing is not None:
            self._arrive(place, place.missing)
        self.forget_exports(place)

    def forget_exports(self, place: Place) -> None:
        """Gives back the pages of states that are still to be left."""
        for export in place.exports.values():
            for g, pages in export.pages.items():
                self._pool.release(g, pages)
        place.exports.clear()

    def held_by(self, place: Place) -> list[tuple[int, list[PhysicalId]]]:
        """Pages by group of the states that a sequence starts from, and of those to be left."""
        held = [] if place.initial is None else [*place.initial.pages.items()]
        return held + [pages for one in place.exports.values() for pages in one.pages.items()]

    def with_exports(self, counts: Sequence[int], number: int) -> list[int] | None:
        """`counts` pages of each group, and those for the states at so many positions.

        None: there are no such, or they are more than may be kept.
        """
        most = self.prefix.most_checkpoints
        if not (number and self._states) or (most is not None and number > most):
            return None
        return [n + number * parts for n, parts in zip(counts, self._parts_of_group, strict=True)]

    def export(self, place: Place, exports: Exports, pages: PagesOfGroups | None = None) -> None:
        """Takes pages for the states at these positions, which next steps leave in the cache.

        As many as there are. With `pages` those of all that are wanted have been allocated.
        """
        self._let_see(place)
        if pages is not None:
            self._hold(place, exports.wanted, USEFUL, pages)
        elif exports.wanted and self._states:
            self.reserve(place, exports.wanted, rank=USEFUL, only_idle=False)
        if exports.regular and self._states:
            self.reserve(place, exports.regular, rank=SUPERSEDED, only_idle=True)

    def _hold(
        self, place: Place, positions: Sequence[int], rank: int, pages: PagesOfGroups
    ) -> None:
        """Notes the positions' pages: in each group those of the first one, and so on."""
        for index, position in enumerate(positions):
            assert position not in place.exports, position
            own = pages
            if len(positions) > 1:
                own = {g: pages[g][index * parts : (index + 1) * parts] for g, parts in self._parts}
            place.exports[position] = Export(own, rank)

    def reserve(
        self, place: Place, positions: Sequence[int], *, rank: int, only_idle: bool
    ) -> None:
        """Takes pages for the states at positions that next steps will pass, while there are any.

        With `only_idle` nothing else is dropped for them.
        """
        if only_idle and not self._pool.allocator.are_free(self._parts_of_group):
            return
        most = self.prefix.most_checkpoints
        wanted = [p for p in dict.fromkeys(positions) if p not in place.exports]
        if most is not None:
            wanted = wanted[: max(0, most - len(place.exports))]
        while wanted:
            counts = [len(wanted) * parts for parts in self._parts_of_group]
            pages = self._pool.try_allocate(counts)
            if pages is None and not only_idle and self._pool.can_allocate(counts):
                pages = self.prefix.allocate(counts)
            if pages is not None:
                self._hold(place, wanted, rank, {g: pages[g] for g, _ in self._parts})
                return
            wanted.pop()

    def _leave(
        self,
        place: Place,
        tables: Sequence[PageTable],
        tokens: Sequence[int],
        position: int,
        states: PagesOfGroups,
        rank: int,
    ) -> None:
        page = position // self.prefix.page_size
        node = self.prefix.node_before(place.node, page)
        if node.end < page:
            return  # not published so far: nothing would find it
        tail = place.token_bytes(tokens, node.length, position)
        pages = {**states, **self._page_of(tables, page)} if tail else states
        checkpoint = self.prefix.add_checkpoint(node, tail, pages, rank)
        if checkpoint is not None:
            place.earlier.append(checkpoint)

    def _forget_initial(self, place: Place) -> None:
        assert place.initial is not None
        for g, pages in place.initial.pages.items():
            self._pool.release(g, pages)
        self.prefix.unpin(place.initial)
        place.initial = None

    def _arrive(self, place: Place, missing: Missing) -> None:
        self._in_flight.discard(missing)
        place.missing = None


def _pages_of(table: PageTable, first: int, count: int) -> Column:
    """The pages `first` to `first + count - 1` in token order; None: released already."""
    begin = first - table.num_released
    if begin >= 0:
        return cast(Column, table.physical_ids[begin : begin + count])
    missing = min(-begin, count)
    return [*[None] * missing, *table.physical_ids[: count - missing]]
