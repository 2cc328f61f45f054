"""The least work of a model, counted by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrt import LLM
from hybridrt.measure.attended import attentions, step_operations
from hybridrt.measure.floor import Floor, RoutedExperts, Work
from hybridrt.measure.machine import Limits


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("demo", cache_memory="8MiB")


def test_a_decode_step_reads_every_weight_once_and_the_cache(llm: LLM) -> None:
    model = llm.engine.model
    weights = {id(p): p for p in model.parameters()}
    if model.lm_head.weight is not model.model.embed_tokens.weight:
        del weights[id(model.model.embed_tokens.weight)]
    cached = llm.plan.bytes_per_token * 100 + llm.plan.bytes_per_sequence
    work = Floor(model, llm.plan).decode(3, 100)
    assert work.num_bytes == sum(p.nbytes for p in weights.values()) + 3 * cached
    attended = sum(step_operations(layer, 100) for layer in attentions(model))
    assert attended > 0
    multiplied = 2 * sum(p.numel() for p in weights.values())
    assert work.operations == 3 * (multiplied + attended)


def test_attention_grows_with_the_square_of_a_prompt_and_all_with_the_batch(llm: LLM) -> None:
    floor = Floor(llm.engine.model, llm.plan)
    once = floor.prefill(1, 64)
    assert floor.prefill(2, 64) == Work(once.num_bytes, 2 * once.operations)
    assert floor.prefill(1, 128).operations > 1.9 * once.operations
    squares = [floor.prefill(1, n).operations for n in (100, 200, 300)]
    assert squares[2] - squares[1] > squares[1] - squares[0]


def test_what_takes_longer_is_the_floor() -> None:
    work = Work(num_bytes=10, operations=40)
    assert work.seconds(Limits(bytes_per_second=2, operations_per_second=20)) == 5
    assert work.seconds(Limits(bytes_per_second=20, operations_per_second=2)) == 20


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 1000))
def test_experts_in_use(count: int, per_token: int, tokens: int) -> None:
    experts = RoutedExperts(count, min(per_token, count), 0, 0)
    share = experts.share(tokens)
    assert experts.share(1) == pytest.approx(experts.per_token / count)
    assert share <= min(1, tokens * experts.per_token / count) + 1e-9
    assert experts.share(tokens + 1) >= share
