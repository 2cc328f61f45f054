"""What an indexer selects, and attention to it, against their definitions in plain loops."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.mla_attention import mla_attention
from hybridrt.kernels.reference import select_tokens as select_reference
from hybridrt.kernels.reference import sparse_mla_attention as attend_reference
from hybridrt.kernels.select_tokens import select_tokens
from hybridrt.kernels.sparse_mla_attention import sparse_mla_attention
from tests.harness.batches import EXTREMES, TOKENS, Ragged, draw_tables, make_batch, ragged
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close

HEADS, DIM, RANK, NOPE, ROPE, V = 3, 6, 10, 5, 4, 7
SCALE = 0.4


@dataclass
class Case:
    """A batch, and every row's tokens in pages of which all else is NaN."""

    batch: ForwardBatch
    rows: list[tuple[int, int, Tensor]]  # context, queries, and what is cached of each token
    cache: Tensor

    @property
    def num_tokens(self) -> int:
        return sum(queries for _, queries, _ in self.rows)


def _case(lengths: Ragged, width: int, device: str, seed: int, block_size: int = 4) -> Case:
    draw = torch.Generator().manual_seed(seed)
    rows, num_blocks = draw_tables(lengths, block_size, spare=3, draw=draw)
    cache = torch.full((num_blocks, block_size, width), torch.nan, device=device)
    held: list[tuple[int, int, Tensor]] = []
    for row in rows:
        values = torch.randn(row.seq_len, width, generator=draw)
        for t, value in enumerate(values.to(device)):
            cache[row.blocks[t // block_size], t % block_size] = value
        held.append((row.context, row.queries, values))
    batch = make_batch(rows, num_decodes=lengths.num_decodes, block_size=block_size, device=device)
    return Case(batch, held, cache)


def _best(scores: Tensor, top_k: int) -> list[int]:
    """Of equal scores the first."""
    ranked = sorted(range(len(scores)), key=lambda s: (-scores[s].item(), s))
    chosen = sorted(ranked[:top_k])
    return chosen + [-1] * (top_k - len(chosen))


def _check_selection(lengths: Ragged, top_k: int, device: str, seed: int, steps: int = 0) -> None:
    """With `steps` everything is a small whole number: scores are exact, and often equal."""
    case = _case(lengths, DIM, device, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    q = torch.randn(case.num_tokens, HEADS, DIM, generator=draw)
    weights = torch.randn(case.num_tokens, HEADS, generator=draw)
    if steps:
        q, weights, case.cache = (x.mul(steps).round() for x in (q, weights, case.cache))
    pages = case.batch.token_pages(TOKENS)
    found = select_tokens(
        q.to(device), weights.to(device), case.cache, pages, case.batch, top_k
    ).cpu()
    assert found.dtype == torch.int32 and found.shape == (case.num_tokens, top_k)
    token = 0
    for context, queries, keys in case.rows:
        keys = keys.mul(steps).round() if steps else keys
        for i in range(queries):
            dots = keys[: context + i + 1].double() @ q[token].double().t()
            scores = dots.relu() @ weights[token].double()
            assert found[token].tolist() == _best(scores, top_k)
            token += 1


@bounded(40)
@given(
    lengths=ragged(longest=25, most_rows=3),
    top_k=st.sampled_from([1, 2, 5, 8, 30]),
    steps=st.sampled_from([0, 1, 2]),
    seed=st.integers(0),
)
def test_the_highest_scores_and_of_equal_ones_the_first(
    device: str, lengths: Ragged, top_k: int, steps: int, seed: int
) -> None:
    _check_selection(lengths, top_k, device, seed % 2**16, steps)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_selection_in_extreme_batches(device: str, lengths: Ragged) -> None:
    _check_selection(lengths, 4, device, 0)


def test_lots_of_a_few_queries_select_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select_reference, "MOST_SCORES", 100)
    _check_selection(Ragged(((9, 1), (3, 17), (0, 20)), 1), 5, device, 0)


def _selections(case: Case, top_k: int, seed: int) -> Tensor:
    """Any tokens that are seen, as `select_tokens` lists them."""
    draw = torch.Generator().manual_seed(seed + 2)
    lists = [
        _best(torch.rand(context + i + 1, generator=draw), top_k)
        for context, queries, _ in case.rows
        for i in range(queries)
    ]
    return torch.tensor(lists, dtype=torch.int32)


def _check_attention(
    lengths: Ragged, top_k: int, device: str, seed: int, sinks: Tensor | None = None
) -> None:
    case = _case(lengths, RANK + ROPE, device, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    q = torch.randn(case.num_tokens, HEADS, NOPE + ROPE, generator=draw)
    w_uk = torch.randn(HEADS, NOPE, RANK, generator=draw) / 3
    w_uv = torch.randn(HEADS, V, RANK, generator=draw) / 3
    selected = _selections(case, top_k, seed)
    out = sparse_mla_attention(
        q[..., :NOPE].to(device),
        q[..., NOPE:].to(device),
        case.cache[..., :RANK],
        case.cache[..., RANK:],
        w_uk.to(device),
        w_uv.to(device),
        selected.to(device),
        case.batch.token_pages(TOKENS),
        case.batch,
        SCALE,
        sinks=None if sinks is None else sinks.to(device),
    )
    right = torch.empty(case.num_tokens, HEADS, V, dtype=torch.float64)
    token = 0
    for _, queries, latents in case.rows:
        for _ in range(queries):
            c_kv, k_pe = (
                latents[selected[token][selected[token] >= 0]].double().split([RANK, ROPE], dim=-1)
            )
            for head in range(HEADS):
                k = torch.cat([c_kv @ w_uk[head].double().t(), k_pe], dim=-1)
                scores = k @ q[token, head].double() * SCALE
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head : head + 1]])
                weights = scores.softmax(0)[: len(k)]
                right[token, head] = weights @ (c_kv @ w_uv[head].double().t())
            token += 1
    assert_close(out, right)


@bounded(30)
@given(
    lengths=ragged(longest=25, most_rows=3),
    top_k=st.sampled_from([1, 2, 5, 8, 30]),
    seed=st.integers(0),
)
def test_attention_to_what_was_selected(
    device: str, lengths: Ragged, top_k: int, seed: int
) -> None:
    _check_attention(lengths, top_k, device, seed % 2**16)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_attention_in_extreme_batches(device: str, lengths: Ragged) -> None:
    _check_attention(lengths, 4, device, 0)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
@pytest.mark.parametrize("top_k", [4, 100])
def test_sinks_join_the_softmax(device: str, lengths: Ragged, top_k: int) -> None:
    _check_attention(lengths, top_k, device, 0, torch.tensor([0.5, 3.0, -1.0]))


def test_lots_of_a_few_queries_attend_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attend_reference, "_MOST_NUMBERS", 200)
    _check_attention(Ragged(((9, 1), (3, 17), (0, 20)), 1), 5, device, 0)


@pytest.mark.parametrize("padding", [0, 3])
def test_with_all_selected_it_is_plain_attention_and_padding_is_nothing(
    device: str, padding: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    rows, num_blocks = draw_tables(Ragged(((7, 1), (2, 9)), 1), 4, spare=2, draw=draw)
    batch = make_batch(rows, num_decodes=1, block_size=4, device=device, padding=padding)
    tokens = 10 + padding

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device)

    q_nope, q_pe = normal(tokens, HEADS, NOPE), normal(tokens, HEADS, ROPE)
    c_kv, k_pe = normal(num_blocks, 4, RANK), normal(num_blocks, 4, ROPE)
    w_uk, w_uv = normal(HEADS, NOPE, RANK), normal(HEADS, V, RANK)
    q, keys = normal(tokens, HEADS, DIM), normal(num_blocks, 4, DIM)
    pages = batch.token_pages(TOKENS)
    selected = select_tokens(q, q[..., 0], keys, pages, batch, 11)
    assert (selected[10:] == -1).all()
    latents = (q_nope, q_pe, c_kv, k_pe, w_uk, w_uv)
    sparse = sparse_mla_attention(*latents, selected, pages, batch, SCALE)
    assert torch.equal(sparse, mla_attention(*latents, pages, batch, SCALE))
