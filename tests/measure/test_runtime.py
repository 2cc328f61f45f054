"""What is measured is what was meant."""

import pytest

from hybridrt import LLM, SamplingParams
from hybridrt.measure.runtime import Hybridrt, random_prompts


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("demo", cache_memory="8MiB")


def test_decoding_sequences_have_one_context_and_go_on_by_their_own_tokens(llm, monkeypatch):
    (context,) = random_prompts(256, 1, 40, seed=0)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    alone = llm.generate([{"prompt_token_ids": [*context, last]} for last in (5, 9)], params)
    seen: list[list[tuple[int, ...]]] = []
    step = llm.step

    def watched():
        outputs = step()
        seen.append([tuple(output.outputs[0].token_ids) for output in outputs])
        return outputs

    monkeypatch.setattr(llm, "step", watched)
    runtime = Hybridrt(llm)
    assert len(runtime.decode(context, [5, 9], 4)) == 4
    expected = [
        (last, *output.outputs[0].token_ids) for last, output in zip((5, 9), alone, strict=True)
    ]
    assert seen[-1] == expected
    assert not llm.has_unfinished
    assert len(runtime.decode(context, [1, 2, 3], 2)) == 2  # the context is there already
    assert len(seen) == 1 + 4 + 2


def test_decoding_sequences_share_no_pages(llm, monkeypatch):
    """Or attention would read from memory once what each of them has."""
    (context,) = random_prompts(256, 1, 300, seed=0)
    full = [group.name for group in llm.plan.groups].index("full")
    seen: list[list[int]] = []
    step = llm.step

    def watched():
        outputs = step()
        pages = llm.engine.pages
        seen.append([page for name in pages for page in pages.tables(name)[full].physical_ids])
        return outputs

    runtime = Hybridrt(llm)
    runtime.decode(context, [1], 1)
    monkeypatch.setattr(llm, "step", watched)
    runtime.decode(context, [5, 9, 7], 4)
    assert len(seen) == 4
    for pages in seen:
        assert len(pages) == len(set(pages)) == 3 * 19


def test_prompts_are_unlike_and_the_same_for_a_seed():
    prompts = random_prompts(1000, 3, 20, seed=1)
    assert prompts == random_prompts(1000, 3, 20, seed=1)
    assert len({tuple(prompt) for prompt in prompts}) == 3
    assert prompts != random_prompts(1000, 3, 20, seed=2)
