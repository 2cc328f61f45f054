"""Attention with biases by distance, against one query and head at a time."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.cache.spec import Window
from hybridrt.kernels.paged_attention import paged_attention
from hybridrt.kernels.reference import relative_attention as reference
from hybridrt.kernels.relative_attention import relative_attention
from tests.harness.batches import EXTREMES, TOKENS, Ragged, draw_tables, make_batch, ragged
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close

HEADS, KV_HEADS, DIM, DIM_V, PROFILES, BLOCK, SCALE = 4, 2, 6, 5, 3, 4, 0.4


@dataclass(frozen=True)
class Case:
    """How far back a query sees, and for how many distances there are profiles."""

    window: int | None
    extent: int
    sinks: bool = False

    def right(
        self, q: Tensor, relative: Tensor, sinks: Tensor, profiles: Tensor, kv: Tensor
    ) -> Tensor:
        """Of one query, the last of the tokens that `kv` has."""
        first = 0 if self.window is None else max(0, len(kv) - self.window)
        out = torch.zeros(HEADS, DIM_V, dtype=torch.float64)
        for head in range(HEADS):
            shared = kv[first:, head // (HEADS // KV_HEADS)].double()
            scores = SCALE * shared[:, :DIM] @ q[head].double()
            for i in range(len(scores)):
                distance = len(scores) - 1 - i
                if distance < self.extent:
                    scores[i] += relative[head].double() @ profiles[:, distance].double()
            total = scores.exp().sum() + self.sinks * sinks[head].double().exp()
            out[head] = scores.exp() / total @ shared[:, DIM:]
        return out


def _check(case: Case, lengths: Ragged, device: str, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    window = None if case.window is None else Window(case.window)
    rows, num_blocks = draw_tables(lengths, BLOCK, spare=3, draw=draw, window=window)
    cache = torch.full((num_blocks, KV_HEADS, BLOCK, DIM + DIM_V), torch.nan)
    held: list[Tensor] = []
    for row in rows:
        held.append(torch.randn(row.seq_len, KV_HEADS, DIM + DIM_V, generator=draw))
        for t in range(row.released * BLOCK, row.seq_len):
            cache[row.block(t // BLOCK), :, t % BLOCK] = held[-1][t]
    batch = make_batch(rows, num_decodes=lengths.num_decodes, block_size=BLOCK, device=device)
    tokens = sum(row.queries for row in rows)
    q = torch.randn(tokens, HEADS, DIM, generator=draw)
    relative = torch.randn(tokens, HEADS, PROFILES, generator=draw)
    sinks = 2 * torch.randn(tokens, HEADS, generator=draw)
    profiles = torch.randn(PROFILES, case.extent, generator=draw)
    k, v = cache.to(device).tensor_split([DIM], dim=-1)
    out = relative_attention(
        *(x.to(device) for x in (q, relative, profiles)),
        k,
        v,
        batch.token_pages(TOKENS),
        batch,
        SCALE,
        case.window,
        sinks=sinks.to(device) if case.sinks else None,
    ).cpu()
    parts = q.split([row.queries for row in rows])
    right = [
        case.right(q[t], relative[t], sinks[t], profiles, kv[: row.context + i + 1])
        for row, kv, first in zip(rows, held, _starts(parts), strict=True)
        for i, t in enumerate(range(first, first + row.queries))
    ]
    assert_close(out, torch.stack(right))


def _starts(parts: tuple[Tensor, ...]) -> list[int]:
    return [sum(len(part) for part in parts[:i]) for i in range(len(parts))]


CASES = [
    *(Case(w, e) for w, e in ((None, 1), (None, 5), (None, 60), (1, 1), (6, 6), (9, 4), (5, 20))),
    *(Case(None, 5, sinks=True), Case(6, 6, sinks=True)),
]


@bounded(40)
@given(lengths=ragged(longest=25, most_rows=3), case=st.sampled_from(CASES), seed=st.integers(0))
def test_equals_one_query_and_head_at_a_time(
    device: str, lengths: Ragged, case: Case, seed: int
) -> None:
    _check(case, lengths, device, seed % 2**16)


@pytest.mark.parametrize("case", [Case(None, 5), Case(6, 6)], ids=str)
@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_extreme_batches(device: str, lengths: Ragged, case: Case) -> None:
    _check(case, lengths, device, 0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lots_of_a_few_queries_give_the_same(
    device: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "_MOST_SCORES", 300)
    _check(case, Ragged(((9, 1), (3, 17), (0, 20)), 1), device, 0)


def test_without_profiles_it_is_plain_attention_and_padding_is_nothing(device: str) -> None:
    draw = torch.Generator().manual_seed(0)
    rows, num_blocks = draw_tables(Ragged(((7, 1), (2, 9)), 1), BLOCK, spare=2, draw=draw)
    batch = make_batch(rows, num_decodes=1, block_size=BLOCK, device=device, padding=3)
    q = torch.randn(13, HEADS, DIM, generator=draw).to(device)
    k, v = (torch.randn(num_blocks, KV_HEADS, BLOCK, d).to(device) for d in (DIM, DIM_V))
    nothing = torch.zeros(PROFILES, 7, device=device)
    pages = batch.token_pages(TOKENS)
    out = relative_attention(q, q[..., :PROFILES], nothing, k, v, pages, batch, SCALE)
    assert_close(out, paged_attention(q, k, v, pages, batch, SCALE).double().cpu())
    assert not out[10:].any()
