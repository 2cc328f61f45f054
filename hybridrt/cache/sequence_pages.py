"""The pages of every sequence in the engine: admit, extend, commit, fork, free."""

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from hybridrt.cache.finder import Match
from hybridrt.cache.page_table import PageTable, PhysicalId
from hybridrt.cache.place import NO_EXPORTS, Exports
from hybridrt.cache.pool import PageCopy, Pool
from hybridrt.cache.prefix import PrefixCache
from hybridrt.cache.prefix_tree import PagesOfGroups
from hybridrt.cache.reuse import Reuse
from hybridrt.cache.sequence_entry import Entry, missing_pages
from hybridrt.cache.slabs import OutOfPages


class SequencePages:
    """One page table per sequence and group, all of them changed together or not at all.

    A sequence is admitted with room for some tokens, extended before it gets more,
    and freed once. `commit` says that tokens were computed: only from then on may
    their pages be shared, since before that nothing stands in them, and may pages that
    no later token sees be given back.

    With a `prefix` cache a sequence can begin with pages of others, and leaves its own there.
    """

    def __init__(self, pool: Pool, prefix: PrefixCache | None = None) -> None:
        self._pool = pool
        self.prefix = prefix
        self._reuse = None if prefix is None else Reuse(pool, prefix)
        self._groups = pool.plan.groups
        self._windows = [x for x in enumerate(self._groups) if x[1].window is not None]
        self._entries: dict[str, Entry] = {}
        self.unsettled: set[str] = set()
        """Sequences that start from another's states at their next step, or leave some in it."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: str) -> bool:
        return sequence in self._entries

    def __iter__(self) -> Iterator[str]:
        """The sequences, in the order in which they were admitted."""
        return iter(self._entries)

    @property
    def keeps_states(self) -> bool:
        """Whether states are left in a prefix cache."""
        return self._reuse is not None and self._reuse.has_states

    @property
    def num_replaced(self) -> int:
        """How often a page in a table was replaced by another with the same contents."""
        return 0 if self._reuse is None else self._reuse.num_twins

    def tables(self, sequence: str) -> tuple[PageTable, ...]:
        """One page table per group of the plan."""
        return self._entries[sequence].tables

    def capacity(self, sequence: str) -> int:
        """How many tokens, from the first on, the sequence has room for in every group."""
        return self._entries[sequence].capacity

    def stays_put(self, sequence: str, num_tokens: int) -> bool:
        """Whether to commit so many tokens changes no page, and one more has room in them."""
        entry = self._entries[sequence]
        return num_tokens < entry.next_event and num_tokens < entry.capacity

    def num_committed(self, sequence: str) -> int:
        """Tokens whose cache has been written."""
        return self._entries[sequence].num_committed

    def match(self, data: bytes, salt: str | None = None) -> Match | None:
        """What the prefix cache has of a prompt as `token_bytes`; None: there is no such cache."""
        return None if self.prefix is None else self.prefix.match(data, salt)

    def is_coming(self, match: Match) -> bool:
        """Whether a sequence that runs is about to compute the first page that a match lacks."""
        return self._reuse is not None and self._reuse.is_coming(match)

    def can_admit(
        self, num_tokens: int, stop: int | None = None, match: Match | None = None
    ) -> bool:
        """Whether `admit` of a new sequence with these numbers would succeed."""
        if match is None or self._reuse is None:
            return self._pool.can_allocate(missing_pages(self._groups, None, num_tokens, stop))
        shared = self._reuse.retain(match)  # what it shares can't make room for the rest
        can = self._pool.can_allocate(self._missing_behind(match, num_tokens, stop))
        self._reuse.release(match, shared)
        return can

    def admit(
        self,
        sequence: str,
        num_tokens: int,
        stop: int | None = None,
        match: Match | None = None,
        salt: str | None = None,
        exports: Exports = NO_EXPORTS,
    ) -> None:
        """Gives a new sequence room for `num_tokens`, in window groups for `stop` of them.

        `stop` is where the first step ends; None: at the last token. With a match the first
        tokens are there already, and count as committed; and next steps leave the states at
        the positions of `exports` in the cache, as far as there are pages for them.

        Raises:
            ValueError: the sequence is there already.
            OutOfPages: there is no room; nothing was changed.
        """
        if sequence in self._entries:
            raise ValueError(f"sequence {sequence!r} is in the cache already")
        if match is None or self._reuse is None:
            pages = self._allocate(missing_pages(self._groups, None, num_tokens, stop))
            entry = Entry(self._tables(pages))
        else:
            entry = self._admit_behind(self._reuse, match, salt, num_tokens, stop, exports)
        self._entries[sequence] = entry
        entry.measure(self._groups)
        self._settle(sequence, entry)

    def _settle(self, sequence: str, entry: Entry) -> None:
        place = entry.place
        if entry.taps or (place is not None and (place.initial is not None or place.exports)):
            self.unsettled.add(sequence)
        else:
            self.unsettled.discard(sequence)
        entry.next_event = 0 if entry.taps else entry.next_release
        if place is not None and self._reuse is not None:
            entry.next_event = min(entry.next_event, self._reuse.next_event(place))

    def _admit_behind(
        self,
        reuse: Reuse,
        match: Match,
        salt: str | None,
        num_tokens: int,
        stop: int | None,
        exports: Exports,
    ) -> Entry:
        missing = self._missing_behind(match, num_tokens, stop)
        if not match.position:
            fresh, exported = self._allocate_beside(missing, reuse, exports.wanted)
            place = reuse.begin(match, salt)
            reuse.export(place, exports, exported)
            tables = self._tables(fresh)
            reuse.fold(place, match, tables)
            return Entry(tables, place=place)
        shared = reuse.retain(match)
        place = reuse.begin(match, salt)
        fresh: list[list[PhysicalId]] = [[] for _ in self._groups]
        try:
            fresh, exported = self._allocate_beside(missing, reuse, exports.wanted)
            reuse.export(place, exports, exported)
            reuse.take_partial(place, fresh)
            if num_tokens == match.position + 1:
                reuse.take_states(place, fresh)
        except BaseException:
            for g, pages in enumerate(zip(shared, fresh, strict=True)):
                self._pool.release(g, [page for both in pages for page in both])
            reuse.end(place)
            raise
        tables = self._tables([s + f for s, f in zip(shared, fresh, strict=True)])
        for g, group in self._windows:
            tables[g].num_released = group.first_kept(match.position) // (group.page_size or 1)
        reuse.fold(place, match, tables)
        return Entry(tables, num_committed=match.position, place=place)

    def _missing_behind(self, match: Match, num_tokens: int, stop: int | None) -> list[int]:
        """Pages of each group that a hit doesn't bring."""
        counts = missing_pages(self._groups, None, num_tokens, stop)
        for g, group in enumerate(self._groups if match.position else ()):
            if group.page_size is not None:
                counts[g] = max(0, counts[g] - match.position // group.page_size)
        return counts

    def _tables(self, pages: Sequence[Sequence[PhysicalId]]) -> tuple[PageTable, ...]:
        both = zip(self._groups, pages, strict=True)
        return tuple(PageTable(group.blocks_per_page, own) for group, own in both)

    def _allocate(self, counts: Sequence[int]) -> list[list[PhysicalId]]:
        """Free pages, and where there are too few those that the prefix cache can do without."""
        pages = self._try_allocate(counts)
        return self._pool.allocate(counts) if pages is None else pages

    def _try_allocate(self, counts: Sequence[int]) -> list[list[PhysicalId]] | None:
        pages = self._pool.try_allocate(counts)
        if pages is None and self.prefix is not None and self._pool.can_allocate(counts):
            pages = self.prefix.allocate(counts)
        return pages

    def _allocate_beside(
        self, counts: Sequence[int], reuse: Reuse, wanted: Sequence[int]
    ) -> tuple[list[list[PhysicalId]], PagesOfGroups | None]:
        """Pages of a sequence, and of all exports that are wanted if both can be had; else None."""
        together = reuse.with_exports(counts, len(wanted))
        pages = None if together is None else self._try_allocate(together)
        if pages is None:
            return self._allocate(counts), None
        exported = {g: pages[g][counts[g] :] for g, _ in reuse.prefix.state_groups}
        for g in exported:
            del pages[g][counts[g] :]
        return pages, exported

    def reserve_exports(self, sequence: str, exports: Exports) -> None:
        """Takes pages for more states that next steps leave in the cache; see `admit`."""
        entry = self._entries[sequence]
        if entry.place is not None and self._reuse is not None:
            self._reuse.export(entry.place, exports)
            self._settle(sequence, entry)

    def forget_exports(self) -> bool:
        """Gives back the pages of all states that are still to be left. Whether there were any."""
        places = {name: self._entries[name].place for name in self.unsettled}
        found = {name: place for name, place in places.items() if place and place.exports}
        for name, place in found.items():
            assert self._reuse is not None
            self._reuse.forget_exports(place)
            self._settle(name, self._entries[name])
        return bool(found)

    def exports(self, sequence: str, start: int, stop: int) -> list[tuple[int, PagesOfGroups]]:
        """The positions in `start` to `stop` whose states are to be left, and in which pages."""
        entry = self._entries[sequence]
        inside = [x for x in entry.taps.items() if start < x[0] < stop] if entry.taps else []
        if entry.place is not None:
            inside += [
                (position, export.pages)
                for position, export in entry.place.exports.items()
                if start < position < stop
            ]
        return sorted(inside, key=itemgetter(0)) if len(inside) > 1 else inside

    def tap(self, sequence: str, positions: Sequence[int]) -> int:
        """Lets the next step leave the states at these positions in pages, for `exports` to tell.

        They are given back when it is committed. Returns for how many, the first ones, there
        are pages, if need be those that the prefix cache can do without.
        """
        entry = self._entries[sequence]
        exported = {} if entry.place is None else entry.place.exports
        for count, position in enumerate(positions):
            if position in exported or position in entry.taps:
                continue
            try:
                pages = self._allocate([0 if g.page_size else g.parts for g in self._groups])
            except OutOfPages:
                self._settle(sequence, entry)
                return count
            states = enumerate(self._groups)
            entry.taps[position] = {g: pages[g] for g, group in states if group.page_size is None}
        self._settle(sequence, entry)
        return len(positions)

    def _untap(self, entry: Entry) -> None:
        for states in entry.taps.values():
            for g, pages in states.items():
                self._pool.release(g, pages)
        entry.taps.clear()

    def initial_states(self, sequence: str) -> PagesOfGroups | None:
        """The checkpoint's pages that the next step starts from; None: the sequence's own."""
        place = self._entries[sequence].place
        if place is None or place.initial is None or place.has_states:
            return None
        return place.initial.pages

    def held_apart(self, sequence: str) -> list[tuple[int, list[PhysicalId]]]:
        """Pages by group that a sequence holds beside those in its tables, until its next steps.

        They have the states that it starts from, and those that it is to leave.
        """
        place = self._entries[sequence].place
        return [] if place is None or self._reuse is None else self._reuse.held_by(place)

    def resume(self, sequence: str, num_tokens: int, salt: str | None = None) -> None:
        """Admits a sequence whose first `num_tokens` tokens were computed elsewhere.

        It gets pages for those that later tokens see; their contents are to be written. They
        are shared from its next commit on.

        Raises:
            ValueError: the sequence is there already.
            OutOfPages: there is no room; nothing was changed.
        """
        if sequence in self._entries:
            raise ValueError(f"sequence {sequence!r} is in the cache already")
        firsts = [group.first_kept(num_tokens) for group in self._groups]
        pages = self._allocate(
            [g.pages_for(num_tokens, first) for g, first in zip(self._groups, firsts, strict=True)]
        )
        tables: list[PageTable] = []
        for group, first, new in zip(self._groups, firsts, pages, strict=True):
            table = PageTable(group.blocks_per_page, new)
            table.num_released = first // (group.page_size or 1)
            tables.append(table)
        self._entries[sequence] = entry = Entry(tuple(tables), num_committed=num_tokens)
        if self._reuse is not None:
            entry.place = self._reuse.begin_apart(salt)
        entry.measure(self._groups)
        self._settle(sequence, entry)

    def can_extend(self, sequence: str, num_tokens: int, stop: int | None = None) -> bool:
        """Whether `extend` with these numbers would succeed."""
        return self._pool.can_allocate(
            missing_pages(self._groups, self._entries[sequence], num_tokens, stop)
        )

    def extend(self, sequence: str, num_tokens: int, stop: int | None = None) -> None:
        """Gives a sequence room for `num_tokens` in all, in window groups for `stop` of them.

        Raises:
            OutOfPages: there is no room; nothing was changed.
        """
        entry = self._entries[sequence]
        pages = self._allocate(missing_pages(self._groups, entry, num_tokens, stop))
        for table, new in zip(entry.tables, pages, strict=True):
            if new:
                table.append(new)
        entry.measure(self._groups)

    def commit(self, sequence: str, num_tokens: int, tokens: Sequence[int] | None = None) -> None:
        """Says that the first `num_tokens` tokens are in the cache now, and which they are.

        Without `tokens` nothing of them is shared.
        """
        entry = self._entries[sequence]
        assert entry.num_committed <= num_tokens <= entry.capacity, (sequence, num_tokens, entry)
        entry.num_committed = num_tokens
        if num_tokens < entry.next_event:
            return
        self._untap(entry)
        if entry.place is not None and self._reuse is not None and tokens is not None:
            self._reuse.publish(entry.place, entry.tables, tokens, num_tokens)
        if num_tokens >= entry.next_release:
            self._release_unseen(entry)
        self._settle(sequence, entry)

    def keep_states(self, sequence: str, tokens: Sequence[int]) -> None:
        """Leaves a copy of the states of a sequence in the prefix cache, if pages are free.

        The sequence is at rest: all that it was given is committed.
        """
        entry = self._entries[sequence]
        if entry.place is not None and self._reuse is not None:
            self._reuse.keep_states(entry.place, entry.tables, tokens, entry.num_committed)
            self._settle(sequence, entry)

    def finish(self, sequence: str, tokens: Sequence[int]) -> None:
        """Frees a sequence whose states are right, and leaves them in the prefix cache."""
        entry = self._entries[sequence]
        place, num_tokens = entry.place, entry.num_committed
        if place is not None and self._reuse is not None:
            stays = self._reuse.donate(place, entry.tables, tokens, num_tokens)
            entry.place = None if stays else place
        self.free(sequence)

    def fork(self, sequence: str, child: str) -> None:
        """Gives a new sequence the committed tokens of another.

        Full pages are shared. The last one, if tokens will be written into it, and states,
        which change in place, are copied.

        Raises:
            ValueError: the child is there already.
            OutOfPages: there is no room for the copies; nothing was changed.
        """
        if child in self._entries:
            raise ValueError(f"sequence {child!r} is in the cache already")
        parent = self._entries[sequence]
        shared, copied = parent.pages_to_fork(self._groups)
        fresh = self._allocate([len(pages) for pages in copied])
        tables = self._tables([[*s, *f] for s, f in zip(shared, fresh, strict=True)])
        for g, table in enumerate(tables):
            self._pool.allocator.retain(g, shared[g])
            table.num_released = parent.tables[g].num_released
        self._pool.copy(
            PageCopy(g, source, target)
            for g, (sources, targets) in enumerate(zip(copied, fresh, strict=True))
            for source, target in zip(sources, targets, strict=True)
        )
        entry = Entry(tables, num_committed=parent.num_committed)
        if parent.place is not None and self._reuse is not None:
            entry.place = self._reuse.fork(parent.place)
        self._entries[child] = entry
        entry.measure(self._groups)
        self._settle(child, entry)

    def set_aside(self, sequence: str, backup: str) -> None:
        """Keeps a sequence as it is under another name, and goes on with a fork of it.

        From now on the sequence shares nothing with the prefix cache: it takes no part in it, so
        that its pages may come to hold something else than what its tokens say.

        Raises:
            OutOfPages: there is no room for the copies; nothing was changed.
        """
        self.fork(sequence, backup)
        entries = self._entries
        entries[sequence], entries[backup] = entries[backup], entries[sequence]
        apart = entries[sequence]
        if apart.place is not None and self._reuse is not None:
            self._reuse.end(apart.place)
            apart.place = None
        for name in (sequence, backup):
            self._settle(name, entries[name])

    def put_back(self, sequence: str, backup: str) -> None:
        """Undoes `set_aside`: the sequence has the pages again that it had then."""
        if sequence in self._entries:
            self.free(sequence)
        self.unsettled.discard(backup)
        self._entries[sequence] = entry = self._entries.pop(backup)
        self._settle(sequence, entry)

    def own(self, sequence: str, group: int, numbers: Iterable[int]) -> None:
        """Gives a sequence copies of those of its pages that others hold or keep too.

        `numbers` are those of pages in token order, of one group.

        Raises:
            OutOfPages: there is no room for the copies; nothing was changed.
        """
        table, allocator = self._entries[sequence].tables[group], self._pool.allocator
        places = [number - table.num_released for number in numbers]
        pages = table.physical_ids
        shared = [
            place
            for place in places
            if allocator.references(group, pages[place]) > 1
            or allocator.is_kept(group, pages[place])
        ]
        counts = [len(shared) if g == group else 0 for g in range(len(self._groups))]
        fresh = self._allocate(counts)[group]
        for place, page in zip(shared, fresh, strict=True):
            self._pool.copy([PageCopy(group, pages[place], page)])
            self._pool.release(group, [table.set(place, page)])

    def free(self, sequence: str) -> None:
        """Gives back all pages of a sequence."""
        entry = self._entries.pop(sequence)
        self.unsettled.discard(sequence)
        self._untap(entry)
        if entry.place is not None and self._reuse is not None:
            for g, _ in self._windows:
                table = entry.tables[g]
                held = range(table.num_released, table.num_released + len(table))
                self._reuse.leave_behind(entry.place, g, held, at_end=True)
        if entry.place is not None and self._reuse is not None:
            self._reuse.end(entry.place)
        for index, table in enumerate(entry.tables):
            self._pool.release(index, table.resize(0))

    def forget_cached(self) -> None:
        """Frees all pages that no sequence has."""
        if self.prefix is not None:
            self.prefix.forget_all()

    def reset(self) -> None:
        """Takes out all sequences, and with all pages all that was cached."""
        self._pool.reset()
        self._entries.clear()
        self.unsettled.clear()
        if self.prefix is not None:
            self.prefix = self.prefix.emptied()
            self._reuse = Reuse(self._pool, self.prefix)

    def rest(self, sequence: str) -> None:
        """Says that a sequence computes nothing for now, though it keeps its pages."""
        entry = self._entries[sequence]
        if entry.place is not None and self._reuse is not None:
            self._reuse.rest(entry.place)
            self._settle(sequence, entry)

    def _release_unseen(self, entry: Entry) -> None:
        for g, group in self._windows:
            table = entry.tables[g]
            first = group.first_kept(entry.num_committed) // (group.page_size or 1)
            if first > table.num_released:
                if entry.place is not None and self._reuse is not None:
                    self._reuse.leave_behind(entry.place, g, range(table.num_released, first))
                self._pool.release(g, table.release(first - table.num_released))
        entry.measure(self._groups)
