"""Chunks of a prefill in bfloat16: our own kernel beside the plain one in float32."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.cpu.attend_blocks import QUERIES
from hybridrt.kernels.cpu.causal_attention import FEWEST_QUERIES, causal_attention
from hybridrt.kernels.cpu.packed_dot import OUTPUTS
from hybridrt.kernels.cpu.pairs import MULTIPLIES_PAIRS
from hybridrt.kernels.reference import softmax_attention as reference
from hybridrt.kernels.reference.gather import EVERYTHING, Reach
from hybridrt.kernels.reference.softmax_attention import Softmax
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_twice_at_most

pytestmark = pytest.mark.skipif(not MULTIPLIES_PAIRS, reason="the processor has no AVX512-BF16")


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
        """What the definition gives in float32."""
        wide = (part.float() for part in (self.q, self.k, self.v))
        return reference.causal_attention(*wide, self.softmax, self.reach, self.first)

    def plain(self) -> Tensor:
        """What torch's own kernels give in bfloat16."""
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
) -> Case:
    draw = torch.Generator().manual_seed(queries + 7 * context)
    first = reach.first_visible(context)
    tokens = context + queries - first

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).bfloat16()

    q = numbers(queries, heads[0], dims[0]).transpose(0, 1) * spread
    k, v = numbers(heads[1], tokens, dims[0]), numbers(heads[1], tokens, dims[1])
    logits = torch.randn(heads[0], generator=draw) if sinks else None
    return Case(q, k, v, Softmax(dims[0] ** -0.5, logits, softcap), reach, first)


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
) -> None:
    case = make(queries, context, heads, dims, reach, sinks=sinks, softcap=softcap)
    assert_twice_at_most(case.ours(), case.plain(), case.exact())


@pytest.mark.parametrize("reach", [EVERYTHING, Reach(50), Reach(96, chunked=True)], ids=str)
def test_a_query_is_as_in_any_other_chunk(reach: Reach) -> None:
    queries = 2 * QUERIES + 9
    case = make(queries, 77, reach=reach)
    whole = case.ours()
    for start, stop in [(0, 8), (8, 140), (140, queries)]:
        assert torch.equal(case.ours(start, stop), whole[:, start:stop])


def test_a_head_is_as_without_the_others() -> None:
    case = make(40, 30, heads=(6, 3))
    whole = case.ours()
    for head in range(6):
        key_head = slice(head // 2, head // 2 + 1)
        alone = Case(case.q[head : head + 1], case.k[key_head], case.v[key_head], case.softmax)
        assert torch.equal(alone.ours()[0], whole[head])


def test_heads_that_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(40, 30, heads=(6, 3), sinks=True)
    whole = case.ours()
    monkeypatch.setattr("hybridrt.kernels.cpu.causal_attention.MOST_BYTES", 1)
    assert torch.equal(case.ours(), whole)


@pytest.mark.parametrize("spread", [1e-3, 30.0, 1e4])
def test_scores_of_any_size(spread: float) -> None:
    case = make(100, 50, spread=spread)
    assert_twice_at_most(case.ours(), case.plain(), case.exact())


def test_any_strides() -> None:
    case = make(64, 20, dims=(32, 32))
    wide = torch.cat([case.k, case.v], -1)
    apart = Case(case.q.contiguous(), *wide.split(32, -1), case.softmax)
    assert torch.equal(apart.ours(), case.ours())


def test_nan_stays_with_those_who_see_it() -> None:
    case = make(100, 0)
    clean = case.ours()
    case.q[1, 70] = case.k[1, 90] = float("nan")
    spoilt = case.ours()
    assert spoilt[1, 70].isnan().all() and spoilt[2:, 90:].isnan().all()
    spoilt[1, 70] = clean[1, 70]
    assert torch.equal(spoilt[:2], clean[:2]) and torch.equal(spoilt[2:, :90], clean[2:, :90])


def test_few_queries_and_other_numbers_are_left_to_torch() -> None:
    few = make(FEWEST_QUERIES // 2 - 1, 9)
    assert torch.equal(few.ours(), few.plain())
    case = make(40, 9)
    for dtype in (torch.float32, torch.float16):
        some = [part.to(dtype) for part in (case.q, case.k, case.v)]
        expected = reference.causal_attention(*some, case.softmax)
        assert torch.equal(causal_attention(*some, case.softmax), expected)
