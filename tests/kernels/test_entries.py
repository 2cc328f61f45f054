"""Entries of several tokens: where they stand, of what they are made and how they are seen,
against definitions in plain loops."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import Window, entries_of_block
from hybridrt.kernels.entry_attention import entry_attention
from hybridrt.kernels.pool_chunks import pool_chunks
from hybridrt.kernels.reference import entry_attention as attend_reference
from hybridrt.kernels.reference import select_entries as select_reference
from hybridrt.kernels.reference.entries import EntryGrid
from hybridrt.kernels.select_entries import select_entries
from hybridrt.kernels.write_pages import write_pages
from tests.harness.batches import EXTREMES, TOKENS, Ragged, Row, draw_tables, make_batch, ragged
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close

DIM, HEADS, SCALE = 6, 3, 0.4
RATES = st.sampled_from([1, 2, 3, 4, 7, 16])
BLOCKS = st.sampled_from([1, 2, 3, 4, 8, 16])


@bounded(60)
@given(rate=st.integers(1, 40), size=st.integers(1, 40), length=st.integers(1, 200))
def test_every_entry_stands_in_the_block_of_its_last_token(
    rate: int, size: int, length: int
) -> None:
    grid, places = EntryGrid(rate, size), entries_of_block(size, rate)
    positions = torch.arange(length)
    slots = grid.slots(positions + 5 * size, positions, places)  # behind five other blocks
    ends = [p for p in range(length) if (p + 1) % rate == 0]
    assert [p for p in range(length) if slots[p] >= 0] == ends
    assert len(set(slots[ends].tolist())) == len(ends)
    for entry, position in enumerate(ends):
        block, place = divmod(int(slots[position]), places)
        assert block - 5 == position // size
        assert tuple(map(int, grid.locate(torch.tensor(entry)))) == (block - 5, place)
    assert grid.slots(torch.full((length,), -1), positions, places).eq(-1).all()


def _paged(
    values: list[Tensor], rows: list[Row], num_blocks: int, size: int, device: str
) -> Tensor:
    """What each row's tokens have, in pages of which all else is NaN."""
    cache = torch.full((num_blocks, size, values[0].shape[1]), torch.nan, device=device)
    for row, of in zip(rows, values, strict=True):
        for t in range(row.released * size, row.seq_len):
            cache[row.block(t // size), t % size] = of[t]
    return cache


def _pooled(inputs: Tensor, bias: Tensor, end: int, overlaps: bool) -> Tensor:
    """The entry that ends before token `end`, number by number."""
    rate, width = bias.shape
    first = end - rate
    dim = width // 2 if overlaps else width
    out = torch.empty(dim, dtype=torch.float64)
    for channel in range(dim):
        pairs = [
            (inputs[first + j, c], inputs[first + j, width + c] + bias[j, c])
            for j in range(rate)
            for c in [channel + width - dim]
        ]
        if overlaps and first:
            pairs += [
                (inputs[first - rate + j, channel], inputs[first - rate + j, width + channel] + b)
                for j, b in enumerate(bias[:, channel])
            ]
        weights = torch.stack([gate for _, gate in pairs]).softmax(0)
        out[channel] = (weights * torch.stack([value for value, _ in pairs])).sum()
    return out


def _check_pool(
    lengths: Ragged, rate: int, size: int, overlaps: bool, seed: int, device: str, padding: int = 0
) -> None:
    draw = torch.Generator().manual_seed(seed)
    window = Window(2 * rate) if overlaps else Window(rate, chunked=True)
    rows, num_blocks = draw_tables(lengths, size, 3, draw, window)
    width = 2 * DIM if overlaps else DIM
    inputs = [torch.randn(row.seq_len, 2 * width, generator=draw) for row in rows]
    bias = torch.randn(rate, width, generator=draw)
    batch = make_batch(
        rows, num_decodes=lengths.num_decodes, block_size=size, device=device, padding=padding
    )
    cache = _paged(inputs, rows, num_blocks, size, device)
    out = pool_chunks(cache, bias.to(device), batch.token_pages(TOKENS), batch, overlaps)
    right = [
        _pooled(of.double(), bias.double(), t + 1, overlaps)
        if (t + 1) % rate == 0
        else torch.zeros(DIM, dtype=torch.float64)
        for row, of in zip(rows, inputs, strict=True)
        for t in range(row.context, row.seq_len)
    ]
    right += [torch.zeros(DIM, dtype=torch.float64)] * padding
    assert_close(out, torch.stack(right), among=torch.ones(1))


@bounded(40)
@given(
    lengths=ragged(longest=25, most_rows=3),
    rate=RATES,
    size=BLOCKS,
    overlaps=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_an_entry_is_of_its_chunk_and_perhaps_of_the_one_before(
    device: str, lengths: Ragged, rate: int, size: int, overlaps: bool, seed: int
) -> None:
    _check_pool(lengths, rate, size, overlaps, seed, device)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_entries_in_extreme_batches(device: str, lengths: Ragged, overlaps: bool) -> None:
    _check_pool(lengths, 4, 3, overlaps, 0, device, padding=2)


@dataclass
class Case:
    """A batch, and every row's entries in pages of which all else is NaN."""

    batch: ForwardBatch
    rows: list[Row]
    entries: list[Tensor]
    cache: Tensor
    grid: EntryGrid


def _case(lengths: Ragged, rate: int, size: int, seed: int, device: str, padding: int = 0) -> Case:
    draw = torch.Generator().manual_seed(seed)
    rows, num_blocks = draw_tables(lengths, size, 3, draw)
    grid, places = EntryGrid(rate, size), entries_of_block(size, rate)
    cache = torch.full((num_blocks, places, DIM), torch.nan, device=device)
    entries: list[Tensor] = []
    for row in rows:
        entries.append(torch.randn(row.seq_len // rate, DIM, generator=draw))
        positions = torch.arange(row.seq_len)
        slots = torch.tensor(row.blocks)[positions // size] * size + positions % size
        values = entries[-1].repeat_interleave(rate, dim=0)
        values = torch.cat([values, torch.zeros(row.seq_len - len(values), DIM)])
        where = grid.slots(slots, positions, places).to(device)
        write_pages(values.to(device), cache, where)
    batch = make_batch(
        rows, num_decodes=lengths.num_decodes, block_size=size, device=device, padding=padding
    )
    return Case(batch, rows, entries, cache, grid)


def _best(scores: Tensor, top_k: int) -> list[int]:
    """Of equal scores the first."""
    ranked = sorted(range(len(scores)), key=lambda s: (-scores[s].item(), s))
    chosen = sorted(ranked[:top_k])
    return chosen + [-1] * (top_k - len(chosen))


def _check_selection(
    lengths: Ragged, rate: int, size: int, top_k: int, seed: int, device: str, padding: int = 0
) -> None:
    case = _case(lengths, rate, size, seed, device, padding)
    draw = torch.Generator().manual_seed(seed + 1)
    tokens = lengths.num_tokens + padding
    q = torch.randn(tokens, HEADS, DIM, generator=draw)
    weights = torch.randn(tokens, HEADS, generator=draw)
    pages = case.batch.token_pages(TOKENS)
    found = select_entries(
        q.to(device), weights.to(device), case.cache, pages, case.grid, case.batch, top_k
    ).cpu()
    right = []
    for row, entries in zip(case.rows, case.entries, strict=True):
        for t in range(row.context, row.seq_len):
            token = len(right)
            keys = entries[: (t + 1) // rate].double()
            scores = (keys @ q[token].double().t()).relu() @ weights[token].double()
            right.append(_best(scores, top_k))
    assert found.tolist() == right + [[-1] * top_k] * padding


@bounded(40)
@given(
    lengths=ragged(longest=30, most_rows=3),
    rate=RATES,
    size=BLOCKS,
    top_k=st.sampled_from([1, 2, 5, 40]),
    seed=st.integers(0, 2**16),
)
def test_the_highest_scores_of_entries_that_have_ended(
    device: str, lengths: Ragged, rate: int, size: int, top_k: int, seed: int
) -> None:
    _check_selection(lengths, rate, size, top_k, seed, device)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_selection_in_extreme_batches(device: str, lengths: Ragged) -> None:
    _check_selection(lengths, 3, 4, 2, 0, device, padding=2)


def test_lots_of_a_few_queries_select_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select_reference, "MOST_SCORES", 50)
    _check_selection(Ragged(((9, 1), (3, 17), (0, 20)), 1), 2, 4, 3, 0, device)


def _check_attention(
    lengths: Ragged,
    rate: int,
    size: int,
    window: int,
    top_k: int | None,
    seed: int,
    device: str,
    padding: int = 0,
) -> None:
    """Tokens in their window have a page table of their own, of blocks of another size."""
    case = _case(lengths, rate, size, seed, device, padding)
    draw = torch.Generator().manual_seed(seed + 1)
    rows, num_blocks = draw_tables(lengths, 3, 2, draw, Window(window))
    held = [torch.randn(row.seq_len, DIM, generator=draw) for row in rows]
    kv = _paged(held, rows, num_blocks, 3, device)
    recent = make_batch(
        rows, num_decodes=lengths.num_decodes, block_size=3, device=device, padding=padding
    )
    tokens = lengths.num_tokens + padding
    q = torch.randn(tokens, HEADS, DIM, generator=draw)
    sinks = torch.randn(HEADS, generator=draw)
    ended = [(t + 1) // rate for row in rows for t in range(row.context, row.seq_len)]
    selected = None
    if top_k is not None:
        lists = [_best(torch.rand(count, generator=draw), top_k) for count in ended]
        selected = torch.tensor(lists + [[-1] * top_k] * padding, dtype=torch.int32)
    out = entry_attention(
        q.to(device),
        kv,
        recent.token_pages(TOKENS),
        case.cache,
        case.batch.token_pages(TOKENS),
        case.grid,
        case.batch,
        SCALE,
        window,
        sinks.to(device),
        None if selected is None else selected.to(device),
    )
    right: list[Tensor] = []
    for row, of, entries in zip(rows, held, case.entries, strict=True):
        for t in range(row.context, row.seq_len):
            token = len(right)
            seen = range(ended[token]) if selected is None else selected[token].tolist()
            picked = [entries[i] for i in seen if i >= 0]
            keys = torch.stack([*of[max(0, t - window + 1) : t + 1], *picked]).double()
            scores = torch.cat([q[token].double() @ keys.t() * SCALE, sinks[:, None]], dim=1)
            right.append(scores.softmax(1)[:, :-1] @ keys)
    right += [torch.zeros(HEADS, DIM, dtype=torch.float64)] * padding
    assert_close(out, torch.stack(right))


@bounded(40)
@given(
    lengths=ragged(longest=30, most_rows=3),
    rate=RATES,
    size=BLOCKS,
    window=st.sampled_from([1, 4, 9, 60]),
    top_k=st.sampled_from([None, None, 1, 3, 40]),
    seed=st.integers(0, 2**16),
)
def test_attention_to_a_window_and_to_entries(
    device: str,
    lengths: Ragged,
    rate: int,
    size: int,
    window: int,
    top_k: int | None,
    seed: int,
) -> None:
    _check_attention(lengths, rate, size, window, top_k, seed, device)


@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_attention_in_extreme_batches(device: str, lengths: Ragged, top_k: int | None) -> None:
    _check_attention(lengths, 5, 2, 4, top_k, 0, device, padding=2)


@pytest.mark.parametrize("top_k", [None, 2])
def test_lots_of_a_few_queries_attend_the_same(
    device: str, top_k: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attend_reference, "_MOST_NUMBERS", 200)
    _check_attention(Ragged(((9, 1), (3, 17), (0, 20)), 1), 3, 4, 5, top_k, 0, device)
