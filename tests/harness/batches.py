"""`ForwardBatch`es made by hand, apart from the runner's way of making them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.batch import ForwardBatch, Rows, StatePages, TokenPages
from hybridrt.cache.spec import Window

TOKENS, STATES = "tokens", "states"  # the names of the groups here


@dataclass(frozen=True)
class Row:
    """One row: `queries` new tokens behind `context` earlier ones.

    `blocks` are its kernel blocks in token order, behind the first `released` ones, which
    it has given back; `page` is the page of its state. It starts from the state in
    `initial_page`, if that is another, and with `follows` goes on with the row before it.
    """

    context: int
    queries: int
    blocks: Sequence[int] = ()
    page: int = 0
    released: int = 0
    initial_page: int | None = None
    follows: bool = False

    @property
    def starts_from(self) -> int:
        """The page that its state is read from."""
        return self.page if self.initial_page is None else self.initial_page

    @property
    def seq_len(self) -> int:
        return self.context + self.queries

    def block(self, index: int) -> int:
        """The kernel block that holds the tokens from `index * block_size` on."""
        assert index >= self.released, "that block is another's by now"
        return self.blocks[index - self.released]


def make_batch(
    rows: Sequence[Row],
    *,
    num_decodes: int,
    block_size: int = 1,
    device: str = "cpu",
    padding: int = 0,
    cut_for_states: bool = False,
) -> ForwardBatch:
    """The batch of these rows, decodes first. `padding` tokens of slot -1 follow the last.

    With `cut_for_states` only state groups have the rows that follow; tokens have whole ones.
    """
    _check(rows, num_decodes)
    states = StatePages(
        torch.tensor([[row.page for row in rows]]).to(device),
        torch.tensor([[row.starts_from for row in rows]]).to(device),
    )
    cut_rows = Rows(**_fields(rows, num_decodes, device)) if cut_for_states else None
    rows = uncut(rows) if cut_for_states else rows
    positions = [row.context + i for row in rows for i in range(row.queries)] + [0] * padding
    slots = [_slot(row, row.context + i, block_size) for row in rows for i in range(row.queries)]
    slots += [-1] * padding
    stops = torch.tensor([row.queries for row in rows]).cumsum(0)
    return ForwardBatch(
        **_fields(rows, num_decodes, device),
        input_ids=torch.zeros(len(positions), dtype=torch.int64, device=device),
        positions=torch.tensor(positions, device=device),
        rope_positions=torch.tensor(positions, device=device),
        logits_indices=(stops - 1).to(device),
        groups={
            TOKENS: TokenPages(_page_table(rows).to(device), torch.tensor(slots, device=device)),
            STATES: states,
        },
        cut_rows=cut_rows,
    )


def _fields(rows: Sequence[Row], num_decodes: int, device: str) -> dict[str, Any]:
    """Those of `hybridrt.batch.Rows`."""
    queries = torch.tensor([row.queries for row in rows])
    seq_lens = torch.tensor([row.seq_len for row in rows], dtype=torch.int32)
    cu_seqlens = torch.cat([queries.new_zeros(1), queries.cumsum(0)])
    return {
        "seq_lens": seq_lens.to(device),
        "cu_seqlens_q": cu_seqlens.to(device, torch.int32),
        "has_initial_state": torch.tensor([row.context > 0 for row in rows], device=device),
        "query_lens": queries,
        "context_lens": torch.tensor([row.context for row in rows]),
        "follows": torch.tensor([row.follows for row in rows]),
        "num_decodes": num_decodes,
        "starts_anew": not any(row.context for row in rows[num_decodes:]),
    }


def uncut(rows: Sequence[Row]) -> list[Row]:
    """With one row for each sequence, which leaves its state where the last of them does."""
    whole: list[Row] = []
    for row in rows:
        if row.follows:
            first = whole.pop()
            before = first.starts_from
            queries = first.queries + row.queries
            row = replace(first, queries=queries, page=row.page, initial_page=before)
        whole.append(row)
    return whole


def _check(rows: Sequence[Row], num_decodes: int) -> None:
    for row in rows[:num_decodes]:
        assert row.queries == 1 and row.context and row.starts_from == row.page
        assert not row.follows
    for before, row in pairwise(rows):
        if row.follows:
            assert (row.starts_from, row.context) == (before.page, before.seq_len)


def _slot(row: Row, position: int, block_size: int) -> int:
    if not row.blocks:
        return -1
    return row.block(position // block_size) * block_size + position % block_size


def _page_table(rows: Sequence[Row]) -> Tensor:
    table = torch.zeros(len(rows), max(len(row.blocks) for row in rows), dtype=torch.int32)
    for i, row in enumerate(rows):
        table[i, : len(row.blocks)] = torch.tensor(row.blocks, dtype=torch.int32)
    return table


def pages_of(batch: ForwardBatch) -> tuple[Tensor, Tensor]:
    """The pages that the rows leave their states in, and those that they start from."""
    return batch.state_pages(STATES), batch.initial_state_pages(STATES)


@dataclass(frozen=True)
class Ragged:
    """The lengths of a batch: `(context, queries)` of each row, decodes first."""

    lengths: tuple[tuple[int, int], ...]
    num_decodes: int

    @property
    def num_tokens(self) -> int:
        return sum(queries for _, queries in self.lengths)


def in_company(batch: Ragged, dtype: torch.dtype) -> Ragged:
    """With one long row more, if `dtype` is not float32.

    The two-times rule compares two random errors; of a few values, luck would decide.
    """
    if dtype == torch.float32:
        return batch
    return Ragged((*batch.lengths, (5, 96)), batch.num_decodes)


@st.composite
def ragged(draw: st.DrawFn, longest: int = 40, most_rows: int = 4) -> Ragged:
    """Decode rows and prefill chunks of any lengths, at least one row of either."""
    context = st.integers(1, longest)
    decodes = draw(st.lists(context, max_size=most_rows))
    chunk = st.tuples(st.sampled_from([0, 0, 1, 7]) | context, st.integers(1, longest))
    prefills = draw(st.lists(chunk, min_size=0 if decodes else 1, max_size=most_rows))
    return Ragged((*((c, 1) for c in decodes), *prefills), len(decodes))


EXTREMES = (
    Ragged(((0, 1),), 0),  # one token, nothing before it
    Ragged(((1, 1),), 1),  # one decode
    Ragged(((0, 130),), 0),  # longer than any chunk
    Ragged(((129, 3),), 0),  # a few tokens far behind
    Ragged(tuple((1 + i % 5, 1) for i in range(67)), 67),  # many decodes
    Ragged(tuple((1, 1) for _ in range(3)) + tuple((0, 1) for _ in range(30)), 3),  # many rows
)
"""Batches at the ends of what there is."""


def draw_tables(
    batch: Ragged,
    block_size: int,
    spare: int,
    draw: torch.Generator,
    window: Window | None = None,
) -> tuple[list[Row], int]:
    """Rows of distinct kernel blocks and pages in random order, and how many blocks there are.

    With a window, a row has given back all blocks that its first new token doesn't see.
    """
    released = [
        0 if window is None else window.first_visible(context) // block_size
        for context, _ in batch.lengths
    ]
    needs = [
        -(-(context + queries) // block_size) - gone
        for (context, queries), gone in zip(batch.lengths, released, strict=True)
    ]
    num_blocks = sum(needs) + spare
    order = torch.randperm(num_blocks, generator=draw).tolist()
    pages = torch.randperm(len(needs) + spare, generator=draw).tolist()
    rows: list[Row] = []
    for i, (context, queries) in enumerate(batch.lengths):
        need = needs[i]
        rows.append(Row(context, queries, tuple(order[:need]), pages[i], released[i]))
        order = order[need:]
    return rows, num_blocks
