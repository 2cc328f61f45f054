"""Held sequences: what sessions have in the engine, beside the requests on their way.

A held sequence keeps its pages from one run to the next. To compute more of it, or to
generate, it becomes a `HeldRun`, which goes through the scheduler as any request's sequence
does, in the same steps, and starts with the pages that are there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.cache.contents import read_contents, write_contents
from hybridrt.cache.page_table import PageTable
from hybridrt.cache.plan import GroupPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.slabs import OutOfPages
from hybridrt.cache.snapshot import Snapshot
from hybridrt.engine.backup import Backup
from hybridrt.engine.sequence import Sequence, tree_name


@dataclass(slots=True, eq=False)
class HeldRun(Sequence):
    """A held sequence on its way through the engine.

    With `computes_only` it is over when all its tokens are computed. `known_logits` are those
    behind its first `num_known` tokens. One that `was_written_to` can't be computed again.
    """

    computes_only: bool = False
    was_written_to: bool = False
    num_known: int = 0
    known_logits: Float32[Tensor, " vocab"] | None = None

    def know(self, num_tokens: int, logits: Float[Tensor, " vocab"]) -> None:
        """Keeps a copy of the logits behind so many tokens."""
        self.num_known, self.known_logits = num_tokens, logits.float().clone()

    def surely_goes_on(self, token: int | None) -> bool:
        """As of every sequence, but where nothing is generated."""
        return not self.computes_only and Sequence.surely_goes_on(self, token)

    def append(self, token: int) -> None:
        """As of every sequence, but where nothing is generated the first token ends the run."""
        if self.computes_only:
            self.finish_reason = "length"
        else:
            Sequence.append(self, token)


@dataclass(slots=True, eq=False)
class Held:
    """One held sequence. Under `name` the cache has the first `num_computed` of its tokens.

    `logits` are those behind these, if they are known. While it runs the run knows better.
    `generation` counts what was done to it. Once it `was_written_to`, what the cache has is not
    what its tokens say; `backups` have what was before each write that may be undone.
    """

    name: str
    cache_salt: str | None = None
    token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    logits: Float32[Tensor, " vocab"] | None = None
    run: HeldRun | None = None
    generation: int = 0
    was_written_to: bool = False
    backups: list[Backup] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether all its tokens are computed and the logits behind them known."""
        return self.num_computed == len(self.token_ids) and self.logits is not None


class HeldSequences:
    """All held sequences of an engine, and what can be done with them between runs.

    `rope_switch_length` is the model's: a sequence within so many tokens and one beyond it
    have unlike keys, so that one whose length passes it, in either direction, starts over.
    """

    def __init__(self, pages: SequencePages, pool: Pool, rope_switch_length: int | None) -> None:
        self._pages = pages
        self._pool = pool
        self._switch_length = rope_switch_length
        self._held: dict[str, Held] = {}
        self._num_opened = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def __contains__(self, held: Held) -> bool:
        return held.name in self._held

    def open(self, cache_salt: str | None = None) -> Held:
        """A new one, without tokens."""
        held = Held(f"session-{self._num_opened}", cache_salt)
        self._num_opened += 1
        self._held[held.name] = held
        return held

    def close(self, held: Held) -> None:
        """Frees its pages. It must not be on its way."""
        assert held.run is None, held.name
        for backup in held.backups:
            self._pages.finish(backup.name, backup.token_ids)
        held.backups.clear()
        self._drop(held)
        del self._held[held.name]

    def append(self, held: Held, token_ids: list[int]) -> None:
        """Adds tokens, to be computed when that is needed."""
        before, after = len(held.token_ids), len(held.token_ids) + len(token_ids)
        if held.was_written_to and self._passes_switch(before, after):
            raise ValueError(
                f"{held.name} was written to, and with {after} tokens it would have to be computed "
                f"again, since other rotary frequencies hold beyond {self._switch_length}"
            )
        held.generation += 1
        held.token_ids += token_ids
        if self._passes_switch(before, after):
            self._drop(held)

    def begin(self, held: Held, run: HeldRun) -> None:
        """Lets a run start from what is there. It ends with `settle`."""
        self._forget_abandoned()
        if held.num_computed == len(held.token_ids) and held.logits is None:
            self._forget_last(held)
        run.num_computed = run.num_known = held.num_computed
        run.known_logits, run.was_written_to = held.logits, held.was_written_to
        held.generation += 1
        if held.num_computed:
            run.num_cached_tokens, run.cache_note = held.num_computed, "hit"
        held.run = run

    def settle(self, run: HeldRun) -> None:
        """Takes over what a run has come to, finished or not."""
        held = self._held[run.sequence_id]
        held.run, before = None, held.num_computed
        held.generation += 1
        held.token_ids = list(run.token_ids)
        held.num_computed = run.num_computed if held.name in self._pages else 0
        held.logits = run.known_logits if run.num_known == held.num_computed else None
        broken_off = before != held.num_computed < run.num_prompt_tokens
        if broken_off and not held.was_written_to:
            self._drop(held)  # a prefill that was broken off has pages reserved for its states
        if held.name in self._pages:
            self._pages.rest(held.name)
            self._pages.keep_states(held.name, held.token_ids)
        if len(held.token_ids) - 1 == self._switch_length:
            self._drop(held)

    def fork(self, held: Held) -> Held:
        """Another with the same tokens, pages and logits.

        Raises:
            OutOfPages: there is no room for the copies; nothing was changed.
        """
        child = self.open(held.cache_salt)
        try:
            if held.name in self._pages:
                self._pages.fork(held.name, child.name)
        except BaseException:
            del self._held[child.name]
            raise
        child.token_ids = list(held.token_ids)
        child.num_computed, child.logits = held.num_computed, held.logits
        child.was_written_to = held.was_written_to
        return child

    def nearest_exact(self, held: Held, num_tokens: int) -> tuple[int, int]:
        """The next shorter and longer lengths to which it can be cut with what is there.

        Both are `num_tokens` if that is one. The last token that is left is computed once more,
        for its logits; so the cache goes back to the one before it.
        """
        total = len(held.token_ids)
        shortest = min(self._shortest_exact(held), total)
        if num_tokens == 0 or num_tokens >= shortest:
            return num_tokens, num_tokens
        lengths = [0, shortest]
        if self._pages.prefix is not None:
            tree = self._tree(held, num_tokens)
            positions = self._pages.prefix.positions(held.token_ids[:shortest], tree)
            lengths += [p + 1 for p in positions if not self._passes_switch(num_tokens, p + 1)]
        return max(n for n in lengths if n <= num_tokens), min(
            n for n in lengths if n >= num_tokens
        )

    def _shortest_exact(self, held: Held) -> int:
        """The fewest tokens, beside none at all, to which its own pages can go back.

        Every number from there to its own is possible too.
        """
        known = held.num_computed + (held.logits is None)
        if held.name not in self._pages or not held.num_computed:
            return 1
        shortest = 1
        for group, table in zip(self._pool.plan.groups, self._pages.tables(held.name), strict=True):
            if group.page_size is None:
                return known
            first_held = table.num_released * group.page_size
            shortest = max(shortest, _shortest_seeing(group, first_held, held.num_computed) + 1)
        if self._switch_length is not None and len(held.token_ids) > self._switch_length:
            shortest = max(shortest, self._switch_length + 1)
        return min(shortest, known)

    def truncate(self, held: Held, num_tokens: int) -> None:
        """Keeps the first tokens, and of the cache what is right for them."""
        if num_tokens == len(held.token_ids):
            return
        held.generation += 1
        if num_tokens == 0 or num_tokens < self._shortest_exact(held):
            self._drop(held)
        elif num_tokens < held.num_computed:
            self._go_back(held, num_tokens - 1)
        del held.token_ids[num_tokens:]

    def is_lost(self, held: Held) -> bool:
        """Whether it was written to and has had to give its pages up, and what was written."""
        return held.was_written_to and held.name not in self._pages

    def set_aside(self, held: Held) -> Backup:
        """Keeps it as it is, to be put back, and lets it be written to.

        Raises:
            OutOfPages: there is no room for the copies; nothing was changed.
        """
        self._forget_abandoned()
        name = f"{held.name} before write {held.generation}"
        self._pages.set_aside(held.name, name)
        ids, written = list(held.token_ids), held.was_written_to
        backup = Backup(name, ids, held.num_computed, held.logits, written)
        held.backups.append(backup)
        held.was_written_to = True
        held.generation += 1
        return backup

    def put_back(self, held: Held, backup: Backup) -> None:
        """Sets it back to what it was at `set_aside`. It must not be on its way."""
        while held.backups[-1] is not backup:
            self._pages.free(held.backups.pop().name)
        held.backups.pop()
        self._pages.put_back(held.name, backup.name)
        held.token_ids, held.num_computed = list(backup.token_ids), backup.num_computed
        held.logits, held.was_written_to = backup.logits, backup.was_written_to
        held.generation += 1

    def let_go(self, held: Held, backup: Backup) -> None:
        """Gives a backup's pages back, so that the write is there to stay."""
        held.backups.remove(backup)
        self._pages.finish(backup.name, backup.token_ids)

    def _forget_abandoned(self) -> None:
        for held in self:
            for backup in [backup for backup in held.backups if backup.abandoned]:
                self.let_go(held, backup)

    def table(self, held: Held, group: str) -> PageTable | None:
        """Its page table in a group; None: it holds nothing yet."""
        if held.name not in self._pages:
            return None
        names = [plan.name for plan in self._pool.plan.groups]
        return self._pages.tables(held.name)[names.index(group)]

    def snapshot(self, held: Held, fingerprint: Mapping[str, Any]) -> Snapshot:
        """A copy of a complete one."""
        contents: dict[str, Tensor] = {}
        if held.num_computed:
            tables = self._pages.tables(held.name)
            contents = read_contents(self._pool, tables, held.num_computed)
        ids, logits = tuple(held.token_ids), held.logits
        return Snapshot(ids, logits, contents, fingerprint, held.cache_salt)

    def restore(self, saved: Snapshot) -> Held:
        """Holds a sequence that was saved, here or elsewhere.

        Raises:
            OutOfPages: there is no room for its pages; nothing was changed.
        """
        held = self.open(saved.cache_salt)
        try:
            if saved.token_ids:
                tree = self._tree(held, len(saved.token_ids))
                self._pages.resume(held.name, len(saved.token_ids), tree)
                write_contents(self._pool, self._pages.tables(held.name), saved.contents)
        except BaseException:
            self.close(held)
            raise
        held.token_ids, held.num_computed = list(saved.token_ids), len(saved.token_ids)
        if saved.logits is not None:
            held.logits = saved.logits.to(self._pool.bytes.device)
        return held

    def lose_pages(self) -> None:
        """Notes that all pages are gone: everything is to be computed again."""
        for held in self:
            held.num_computed, held.logits = 0, None
            held.generation += 1
            held.backups.clear()

    def explain_no_room(self, num_unfinished: int) -> str:
        """Why none of so many requests can run."""
        idle = sum(held.run is None and held.name in self._pages for held in self)
        free, total = self._pool.allocator.num_free_slabs, self._pool.plan.num_slabs
        return (
            f"none of {num_unfinished} unfinished requests finds room: {idle} idle sessions hold "
            f"their pages, {free} of {total} slabs are free; close a session or raise cache_memory"
        )

    def _tree(self, held: Held, num_tokens: int) -> str | None:
        return tree_name(held.cache_salt, num_tokens, self._switch_length)

    def _passes_switch(self, before: int, after: int) -> bool:
        switch = self._switch_length
        return switch is not None and (before > switch) != (after > switch)

    def _drop(self, held: Held) -> None:
        """Leaves its pages to the prefix cache, so that all its tokens are to be computed."""
        if held.name in self._pages:
            self._pages.finish(held.name, held.token_ids)
        held.num_computed, held.logits = 0, None

    def _go_back(self, held: Held, num_tokens: int) -> None:
        """Lets the cache hold so many tokens, in pages into which the next may be written.

        Pages may be shared, so what is kept moves into new ones. Without room for that
        the sequence is computed from its first token again.
        """
        held.logits = None
        if not num_tokens:
            self._drop(held)
            return
        contents = read_contents(self._pool, self._pages.tables(held.name), num_tokens)
        self._pages.free(held.name)
        try:
            self._pages.resume(held.name, num_tokens, self._tree(held, num_tokens + 1))
        except OutOfPages:
            self._drop(held)
            return
        write_contents(self._pool, self._pages.tables(held.name), contents)
        held.num_computed = num_tokens

    def _forget_last(self, held: Held) -> None:
        """Leaves the last token to be computed, since the logits behind it aren't known."""
        if len(held.token_ids) < self._shortest_exact(held):
            self._drop(held)
        else:
            self._go_back(held, held.num_computed - 1)


def _shortest_seeing(group: GroupPlan, first_held: int, most: int) -> int:
    """The fewest tokens behind which the next sees none before `first_held`."""
    if not first_held:
        return 0
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if group.first_kept(middle) >= first_held:
            high = middle
        else:
            low = middle + 1
    return low
