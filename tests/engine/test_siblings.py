"""Several outputs of one prompt: it is computed once, and each goes on as if it were alone."""

from collections.abc import Iterator

import pytest

from hybridrt import LLM, SamplingParams
from hybridrt.request import RequestOutput
from tests.harness.engines import LARGEST_ERROR, open_llm
from tests.session.open_sessions import EVERY_KIND, EVERY_STATE, LONGROPE, MAMBA, WINDOWS

NAMES = ("llama-grouped-heads", EVERY_KIND, EVERY_STATE, WINDOWS, MAMBA, LONGROPE)
PROMPT = [3 + 7 * i % 90 for i in range(37)]
DRAWN = SamplingParams(
    n=4, temperature=0.9, seed=11, max_tokens=9, ignore_eos=True, logprobs=2, prompt_logprobs=1
)


def alone(name: str, caching: bool = True) -> RequestOutput:
    """Each output in an engine that has room for one at a time."""
    (output,) = open_llm(name, max_num_seqs=1, enable_prefix_caching=caching).generate(
        [PROMPT], DRAWN
    )
    return output


def assert_alike(output: RequestOutput, other: RequestOutput) -> None:
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len(PROMPT)
    for ours, theirs in zip(output.outputs, other.outputs, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs is not None and theirs.logprobs is not None
        for mine, its in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert mine.keys() == its.keys()
            for token, entry in mine.items():
                assert entry.logprob == pytest.approx(its[token].logprob, abs=LARGEST_ERROR)


def steps(llm: LLM, prompt: list[int], params: SamplingParams) -> Iterator[list[int]]:
    """Adds a request, and gives the numbers of tokens of the rows of every step."""
    llm.add_request(prompt, params, "request")
    scheduler = llm.engine._scheduler
    schedule = scheduler.schedule
    while llm.has_unfinished:
        rows: list[list[int]] = []

        def watch(rows: list[list[int]] = rows) -> object:
            found = schedule()
            rows.append([row.num_tokens for row in found])
            return found

        scheduler.schedule = watch  # type: ignore[method-assign,assignment]
        llm.step()
        scheduler.schedule = schedule  # type: ignore[method-assign]
        yield rows[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("caching", [True, False])
def test_the_outputs_are_those_of_one_at_a_time(name: str, caching: bool) -> None:
    for options in ({}, {"max_num_seqs": 2}, {"max_num_batched_tokens": 8}):
        llm = open_llm(name, enable_prefix_caching=caching, **options)
        (output,) = llm.generate([PROMPT], DRAWN)
        assert_alike(output, alone(name))
        assert len(llm.engine.pages) == 0 and not llm.engine._entries


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("caching", [True, False])
def test_the_prompt_is_computed_once(name: str, caching: bool) -> None:
    llm = open_llm(name, enable_prefix_caching=caching)
    first, *rest = steps(llm, PROMPT, DRAWN)
    assert first == [len(PROMPT)]
    assert rest == [[1] * 4] * 8


@pytest.mark.parametrize("name", [EVERY_KIND, "llama-grouped-heads"])
def test_where_there_is_no_room_beside_the_first_the_others_wait(name: str) -> None:
    probe = open_llm(name)
    one = probe.plan.slabs_for(len(PROMPT) + 9)
    llm = open_llm(name, cache_memory=(one + 1) * probe.plan.slab_bytes)
    (output,) = llm.generate([PROMPT], DRAWN)
    assert_alike(output, alone(name))


@pytest.mark.parametrize("num_steps", range(5))
def test_an_abort_at_any_time_leaves_nothing(num_steps: int) -> None:
    llm = open_llm(EVERY_KIND, max_num_batched_tokens=16, max_num_seqs=3)
    llm.add_request(PROMPT, DRAWN, "request")
    for _ in range(num_steps):
        llm.step()
    llm.abort("request")
    assert not llm.has_unfinished and not len(llm.engine.pages)
    (output,) = llm.generate([PROMPT], DRAWN)
    assert_alike(output, alone(EVERY_KIND))
