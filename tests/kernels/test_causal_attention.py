"""Chunks of a prefill: our own kernels of bfloat16 and float32 beside the plain one."""

from dataclasses import dataclass

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.cpu.attend_blocks import QUERIES
from hybridrt.kernels.cpu.causal_attention import (
    FEWEST_QUERIES,
    attend_rows,
    causal_attention,
    takes_pages,
)
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.vectors import HAS_VECTORS
from hybridrt.kernels.reference import softmax_attention as reference
from hybridrt.kernels.reference.gather import EVERYTHING, Reach
from hybridrt.kernels.reference.softmax_attention import Softmax
from tests.harness.batches import TOKENS, Row, make_batch
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_twice_at_most

BFLOAT16 = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(not HAS_VECTORS, reason="the processor has no AVX2"),
    id="bfloat16",
)
of_both = pytest.mark.parametrize("dtype", [BFLOAT16, pytest.param(torch.float32, id="float32")])


@dataclass
class Case:
    """What a chunk at the end of `tokens` is given; keys begin with the token at `first`."""

    q: Tensor
    k: Tensor
    v: Tensor
    softmax: Softmax
    reach: Reach = EVERYTHING
    first: int = 0

    def ours(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Of some of the queries, by a call for them alone."""
        queries = self.q.shape[1]
        stop = queries if stop is None else stop
        end = self.k.shape[1] - queries + stop
        some = self.q[:, start:stop], self.k[:, :end], self.v[:, :end]
        return causal_attention(*some, self.softmax, self.reach, self.first)

    def exact(self) -> Tensor:
        """What the definition gives in more bits."""
        dtype = torch.float32 if self.q.dtype == torch.bfloat16 else torch.float64
        wide = (part.to(dtype) for part in (self.q, self.k, self.v))
        return reference.causal_attention(*wide, self.softmax, self.reach, self.first)

    def plain(self) -> Tensor:
        """What torch's own kernels give."""
        args = self.q, self.k, self.v, self.softmax, self.reach, self.first
        return reference.causal_attention(*args)


def make(
    queries: int,
    context: int,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (32, 32),
    reach: Reach = EVERYTHING,
    *,
    sinks: bool = False,
    softcap: float | None = None,
    spread: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Case:
    draw = torch.Generator().manual_seed(queries + 7 * context)
    first = reach.first_visible(context)
    tokens = context + queries - first

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(dtype)

    q = numbers(queries, heads[0], dims[0]).transpose(0, 1) * spread
    k, v = numbers(heads[1], tokens, dims[0]), numbers(heads[1], tokens, dims[1])
    logits = torch.randn(heads[0], generator=draw) if sinks else None
    return Case(q, k, v, Softmax(dims[0] ** -0.5, logits, softcap), reach, first)


@of_both
@bounded(60)
@given(
    queries=st.integers(1, 2 * QUERIES + 3),
    context=st.integers(0, 3 * OUTPUTS),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1)]),
    dims=st.sampled_from([(32, 32), (2, 5), (64, 128), (96, 80), (130, 64)]),
    reach=st.sampled_from([EVERYTHING, Reach(1), Reach(70), Reach(64, chunked=True)]),
    sinks=st.booleans(),
    softcap=st.sampled_from([None, 3.0]),
)
def test_is_the_plain_attention(
    queries: int,
    context: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    reach: Reach,
    sinks: bool,
    softcap: float | None,
    dtype: torch.dtype,
) -> None:
    case = make(queries, context, heads, dims, reach, sinks=sinks, softcap=softcap, dtype=dtype)
    if dtype == torch.bfloat16:
        assert_twice_at_most(case.ours(), case.plain(), case.exact())
    else:
        torch.testing.assert_close(case.ours(), case.plain(), rtol=1e-5, atol=1e-5)


@of_both
@pytest.mark.parametrize("reach", [EVERYTHING, Reach(50), Reach(96, chunked=True)], ids=str)
def test_a_query_is_as_in_any_other_chunk(reach: Reach, dtype: torch.dtype) -> None:
    queries = 2 * QUERIES + 9
    case = make(queries, 77, reach=reach, dtype=dtype)
    whole = case.ours()
    for start, stop in [(0, 8), (8, 140), (140, queries)]:
        assert torch.equal(case.ours(start, stop), whole[:, start:stop])


@of_both
def test_a_head_is_as_without_the_others(dtype: torch.dtype) -> None:
    case = make(40, 30, heads=(6, 3), dtype=dtype)
    whole = case.ours()
    for head in range(6):
        key_head = slice(head // 2, head // 2 + 1)
        alone = Case(case.q[head : head + 1], case.k[key_head], case.v[key_head], case.softmax)
        assert torch.equal(alone.ours()[0], whole[head])


@of_both
def test_heads_that_take_turns(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    case = make(40, 30, heads=(6, 3), sinks=True, dtype=dtype)
    whole = case.ours()
    monkeypatch.setattr("hybridrt.kernels.cpu.causal_attention.MOST_BYTES", 1)
    assert torch.equal(case.ours(), whole)


@of_both
@pytest.mark.parametrize("spread", [1e-3, 30.0, 1e4])
def test_scores_of_any_size(spread: float, dtype: torch.dtype) -> None:
    case = make(100, 50, spread=spread, dtype=dtype)
    assert_twice_at_most(case.ours(), case.plain(), case.exact())


@of_both
def test_any_strides(dtype: torch.dtype) -> None:
    case = make(64, 20, dims=(32, 32), dtype=dtype)
    wide = torch.cat([case.k, case.v], -1)
    apart = Case(case.q.contiguous(), *wide.split(32, -1), case.softmax)
    assert torch.equal(apart.ours(), case.ours())


@of_both
def test_nan_stays_with_those_who_see_it(dtype: torch.dtype) -> None:
    case = make(100, 0, dtype=dtype)
    clean = case.ours()
    case.q[1, 70] = case.k[1, 90] = float("nan")
    spoilt = case.ours()
    assert spoilt[1, 70].isnan().all() and spoilt[2:, 90:].isnan().all()
    spoilt[1, 70] = clean[1, 70]
    assert torch.equal(spoilt[:2], clean[:2]) and torch.equal(spoilt[2:, :90], clean[2:, :90])


@of_both
def test_few_queries_are_left_to_torch(dtype: torch.dtype) -> None:
    few = make(FEWEST_QUERIES // 2 - 1, 9, dtype=dtype)
    assert torch.equal(few.ours(), few.plain())


def test_other_numbers_are_left_to_torch() -> None:
    case = make(40, 9, dtype=torch.float16)
    assert torch.equal(case.ours(), case.plain())


@of_both
def test_threads_change_nothing(dtype: torch.dtype) -> None:
    case = make(200, 40, heads=(6, 3), dtype=dtype)
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        alone = case.ours()
        numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
        assert torch.equal(case.ours(), alone)
    finally:
        numba.set_num_threads(before)


@pytest.mark.skipif(not HAS_VECTORS, reason="the processor has no AVX2")
@bounded(60)
@given(data=st.data())
def test_in_pages_it_is_the_same_bit_for_bit(data: st.DataObject) -> None:
    """Whatever the pages' size, order and layout, and wherever in the first one tokens begin."""

    def draw(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    block_size, kv_heads, group = data.draw(st.sampled_from([1, 3, 16, 24])), draw(1, 3), draw(1, 2)
    k_size, v_size = 2 * draw(1, 40), draw(1, 70)
    queries, context, window = draw(16, 90), draw(0, 90), draw(0, 60)
    reach = Reach(window or None, data.draw(st.booleans()))
    first, stop = reach.first_visible(context), context + queries
    begin = first // block_size * block_size
    blocks = -(-(stop - begin) // block_size)
    generator = torch.Generator().manual_seed(draw(0, 2**16))
    shape = (blocks + 2, kv_heads, block_size, k_size + v_size)
    if by_token := data.draw(st.booleans()):
        shape = (blocks + 2, block_size, kv_heads, k_size + v_size)
    kv = torch.randn(shape, generator=generator).bfloat16()
    kv = kv.transpose(1, 2) if by_token else kv
    table = torch.randperm(blocks + 2, generator=generator)[:blocks]
    kv[[block for block in range(blocks + 2) if block not in table.tolist()]] = torch.nan
    k, v = kv.tensor_split([k_size], dim=-1)
    q = torch.randn(group * kv_heads, queries, k_size, generator=generator).bfloat16()
    softmax = Softmax(k_size**-0.5)
    out = torch.full((queries, len(q), v_size), torch.nan, dtype=torch.bfloat16)
    assert takes_pages((q.transpose(0, 1),), (k,), v, softmax)
    row = Row(context, queries, table.tolist(), released=begin // block_size)
    batch = make_batch([row], num_decodes=0, block_size=block_size)
    pages = batch.token_pages(TOKENS)
    attend_rows(q.transpose(0, 1), k, v, pages, batch, softmax, reach, out)
    gathered = kv[table].transpose(0, 1).flatten(1, 2)[:, first - begin : stop - begin]
    keys, values = gathered.tensor_split([k_size], dim=-1)
    expected = causal_attention(q, keys, values, softmax, reach, first)
    assert torch.equal(out.transpose(0, 1), expected)
