"""What blocks are selected by, which are, and attention to them, against plain loops."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.average_blocks import average_blocks
from hybridrt.kernels.paged_attention import paged_attention
from hybridrt.kernels.reference import select_blocks as select_reference
from hybridrt.kernels.reference import select_peak_blocks as peak_reference
from hybridrt.kernels.reference import sparse_attention as attend_reference
from hybridrt.kernels.select_blocks import select_blocks
from hybridrt.kernels.select_peak_blocks import select_peak_blocks
from hybridrt.kernels.sparse_attention import sparse_attention
from tests.harness.batches import EXTREMES, TOKENS, Ragged, draw_tables, make_batch, ragged
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close

HEADS, DIM, V = 4, 6, 5
SCALE = 0.4
PAGE = 4


@dataclass
class Case:
    """A batch, and every row's tokens in pages of which all else is NaN."""

    batch: ForwardBatch
    rows: list[tuple[int, int, Tensor]]  # context, queries, and what is cached of each token
    cache: Tensor

    @property
    def num_tokens(self) -> int:
        return sum(queries for _, queries, _ in self.rows)

    def new_tokens(self) -> Tensor:
        """What is cached of them, of all rows."""
        return torch.cat([values[context:] for context, _, values in self.rows])


def _case(lengths: Ragged, shape: tuple[int, ...], device: str, seed: int) -> Case:
    """Numbers that float32 adds up without rounding."""
    draw = torch.Generator().manual_seed(seed)
    rows, num_blocks = draw_tables(lengths, PAGE, spare=3, draw=draw)
    cache = torch.full((num_blocks, PAGE, *shape), torch.nan, device=device)
    held: list[tuple[int, int, Tensor]] = []
    for row in rows:
        values = torch.randn(row.seq_len, *shape, generator=draw).mul(8).round() / 8
        for t, value in enumerate(values.to(device)):
            cache[row.blocks[t // PAGE], t % PAGE] = value
        held.append((row.context, row.queries, values))
    batch = make_batch(rows, num_decodes=lengths.num_decodes, block_size=PAGE, device=device)
    return Case(batch, held, cache)


@bounded(30)
@given(lengths=ragged(longest=25, most_rows=3), size=st.integers(1, 9), seed=st.integers(0))
def test_whoever_ends_a_block_gets_the_mean_of_its_keys(
    device: str, lengths: Ragged, size: int, seed: int
) -> None:
    case = _case(lengths, (DIM,), device, seed % 2**16)
    cache = case.cache.clone()
    pages, new = case.batch.token_pages(TOKENS), case.new_tokens().to(device)
    cache.flatten(0, 1)[pages.slots] = torch.nan  # they are yet to be written
    means = average_blocks(new, cache, pages, case.batch, size).cpu()
    assert torch.equal(cache.nan_to_num(9.0), case.cache.nan_to_num(9.0))
    token = 0
    for context, queries, keys in case.rows:
        for end in range(context + 1, context + queries + 1):
            right = keys[end - size : end].double().mean(0) if end % size == 0 else keys[end - 1]
            torch.testing.assert_close(means[token], right.float())
            token += 1


def _seen(q: Tensor, keys: Tensor, position: int, size: int, top_k: int) -> list[int]:
    """The definition, for one token: of equal scores the first."""
    ends = range(size - 1, position + 1, size)
    scores = [(keys[end].double() @ q.double().t()).relu().sum().item() for end in ends]
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:top_k]
    whole = [t for i in sorted(best) for t in range(i * size, i * size + size)]
    return [*whole, *range(len(scores) * size, position + 1)]


def _check_selection(lengths: Ragged, size: int, top_k: int, device: str, seed: int) -> None:
    case = _case(lengths, (DIM,), device, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    q = torch.randn(case.num_tokens, HEADS, DIM, generator=draw).mul(2).round()
    pages = case.batch.token_pages(TOKENS)
    found = select_blocks(q.to(device), case.cache, pages, case.batch, size, top_k).cpu()
    assert found.dtype == torch.int32
    assert found.shape == (case.num_tokens, size * top_k + size - 1)
    token = 0
    for context, queries, keys in case.rows:
        for i in range(queries):
            listed = [t for t in found[token].tolist() if t >= 0]
            assert listed == _seen(q[token], keys, context + i, size, top_k)
            token += 1


@bounded(40)
@given(
    lengths=ragged(longest=25, most_rows=3),
    size=st.sampled_from([1, 2, 3, 8]),
    top_k=st.sampled_from([1, 2, 5, 30]),
    seed=st.integers(0),
)
def test_the_blocks_with_the_highest_scores_and_what_is_behind_the_last(
    device: str, lengths: Ragged, size: int, top_k: int, seed: int
) -> None:
    _check_selection(lengths, size, top_k, device, seed % 2**16)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_selection_in_extreme_batches(device: str, lengths: Ragged) -> None:
    _check_selection(lengths, 3, 4, device, 0)


def test_lots_of_a_few_queries_select_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select_reference, "_MOST_SCORES", 100)
    _check_selection(Ragged(((9, 1), (3, 17), (0, 20)), 1), 2, 3, device, 0)


def _seen_by_peak(
    q: Tensor, keys: Tensor, position: int, size: int, top_k: int, local: int
) -> list[int]:
    """The same of one head, where a block is as good as its best token."""
    dots = keys[: position + 1].double() @ q.double()
    peaks = [dots[start : start + size].max().item() for start in range(0, position + 1, size)]
    for i in range(max(0, len(peaks) - local), len(peaks)):
        peaks[i] = float("inf")
    best = sorted(range(len(peaks)), key=lambda i: (-peaks[i], i))[:top_k]
    return [t for i in sorted(best) for t in range(i * size, i * size + size) if t <= position]


def _check_peaks(
    lengths: Ragged, size: int, top_k: int, local: int, device: str, seed: int
) -> None:
    case = _case(lengths, (DIM,), device, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    q = torch.randn(case.num_tokens, HEADS, DIM, generator=draw).mul(2).round()
    pages = case.batch.token_pages(TOKENS)
    found = select_peak_blocks(
        q.to(device), case.cache, pages, case.batch, size, top_k, local
    ).cpu()
    assert found.dtype == torch.int32
    assert found.shape == (case.num_tokens, HEADS, size * top_k)
    token = 0
    for context, queries, keys in case.rows:
        for i in range(queries):
            for head in range(HEADS):
                listed = [t for t in found[token, head].tolist() if t >= 0]
                right = _seen_by_peak(q[token, head], keys, context + i, size, top_k, local)
                assert listed == right
            token += 1


@bounded(40)
@given(
    lengths=ragged(longest=25, most_rows=3),
    size=st.sampled_from([1, 2, 3, 8]),
    blocks=st.sampled_from([(1, 0), (1, 1), (2, 1), (5, 0), (5, 3), (30, 2)]),
    seed=st.integers(0),
)
def test_the_blocks_with_the_best_tokens_behind_those_that_are_near(
    device: str, lengths: Ragged, size: int, blocks: tuple[int, int], seed: int
) -> None:
    _check_peaks(lengths, size, *blocks, device, seed % 2**16)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_selection_by_peaks_in_extreme_batches(device: str, lengths: Ragged) -> None:
    _check_peaks(lengths, 3, 4, 1, device, 0)


def test_lots_of_a_few_queries_select_the_same_by_peaks(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak_reference, "_MOST_SCORES", 100)
    _check_peaks(Ragged(((9, 1), (3, 17), (0, 20)), 1), 2, 3, 1, device, 0)


def _selections(case: Case, groups: int, width: int, seed: int) -> Tensor:
    """Any tokens that are seen, the token's own always among them; in any places."""
    draw = torch.Generator().manual_seed(seed + 2)
    lists: list[Tensor] = []
    for context, queries, _ in case.rows:
        for position in range(context, context + queries):
            for _ in range(groups):
                order = torch.randperm(position, generator=draw)[: width - 1]
                places = torch.full((width,), -1)
                places[: len(order) + 1] = torch.cat([order, torch.tensor([position])])
                lists.append(places[torch.randperm(width, generator=draw)])
    return torch.stack(lists).view(-1, groups, width).to(torch.int32)


def _check_attention(
    lengths: Ragged, kv_heads: int, groups: int, width: int, device: str, seed: int
) -> None:
    case = _case(lengths, (kv_heads, DIM + V), device, seed)
    cache = case.cache.transpose(1, 2)
    q = torch.randn(case.num_tokens, HEADS, DIM, generator=torch.Generator().manual_seed(seed + 1))
    selected = _selections(case, groups, width, seed)
    pages = case.batch.token_pages(TOKENS)
    kv = (cache[..., :DIM], cache[..., DIM:])
    out = sparse_attention(q.to(device), *kv, selected.to(device), pages, case.batch, SCALE)
    right = torch.empty(case.num_tokens, HEADS, V, dtype=torch.float64)
    token = 0
    for _, queries, tokens in case.rows:
        for _ in range(queries):
            for head in range(HEADS):
                listed = selected[token, head * groups // HEADS]
                seen = tokens[listed[listed >= 0], head * kv_heads // HEADS].double()
                k, v = seen.split([DIM, V], dim=-1)
                right[token, head] = (k @ q[token, head].double() * SCALE).softmax(0) @ v
            token += 1
    assert_close(out, right)


@bounded(30)
@given(
    lengths=ragged(longest=25, most_rows=3),
    heads=st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)]),
    width=st.sampled_from([1, 2, 5, 8, 30]),
    seed=st.integers(0),
)
def test_attention_to_what_was_selected(
    device: str, lengths: Ragged, heads: tuple[int, int], width: int, seed: int
) -> None:
    _check_attention(lengths, *heads, width, device, seed % 2**16)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_attention_in_extreme_batches(device: str, lengths: Ragged) -> None:
    _check_attention(lengths, 2, 2, 4, device, 0)


def test_lots_of_a_few_queries_attend_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attend_reference, "_MOST_NUMBERS", 200)
    _check_attention(Ragged(((9, 1), (3, 17), (0, 20)), 1), 2, 1, 5, device, 0)


@pytest.mark.parametrize("padding", [0, 3])
def test_with_all_selected_it_is_plain_attention_and_padding_is_nothing(
    device: str, padding: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    rows, num_blocks = draw_tables(Ragged(((7, 1), (2, 9)), 1), PAGE, spare=2, draw=draw)
    batch = make_batch(rows, num_decodes=1, block_size=PAGE, device=device, padding=padding)
    tokens, pages = 10 + padding, batch.token_pages(TOKENS)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device)

    q, keys = normal(tokens, HEADS, DIM), normal(num_blocks, PAGE, DIM)
    k, v = normal(num_blocks, 2, PAGE, DIM), normal(num_blocks, 2, PAGE, V)
    selected = select_blocks(q, keys, pages, batch, 2, 5)
    assert (selected[10:] == -1).all()
    sparse = sparse_attention(q, k, v, selected[:, None], pages, batch, SCALE)
    assert torch.equal(sparse, paged_attention(q, k, v, pages, batch, SCALE))
