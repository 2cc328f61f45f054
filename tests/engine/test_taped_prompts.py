"""Prompts from tapes give what the model's own forward gives, bit for bit."""

from typing import Any

import pytest
import torch

from hybridrt import LLM, SamplingParams
from hybridrt.engine import taped_decode
from hybridrt.engine.static_prompts import STEP, PromptShape
from hybridrt.engine.taped_decode import TapedDecode
from hybridrt.engine.tapes import Tapes
from tests.engine.test_taped_decode import UNREADABLE
from tests.harness.engines import open_llm
from tests.harness.rows import CACHE_ROWS, ROWS
from tests.oracle import BY_NAME

PARAMS = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=2)
LENGTHS = (17, 20, 32, 9, 5, 18, 31, 16, 3)
"""Of prompts, of which two sizes of padding come up again and again."""

HYBRID, MLA = "bamba-two-groups", "hybrid_stack-every-kind-of-cache"


def prompt_tapes(llm: LLM, starts_anew: bool = True) -> Tapes[PromptShape]:
    found = llm.engine._runner.static_decode
    assert isinstance(found, TapedDecode)
    return found.prompt_tapes[starts_anew]


def prompts(name: str, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    draw, size = torch.Generator().manual_seed(2), BY_NAME[name].config["vocab_size"]
    return [torch.randint(size, (n,), generator=draw).tolist() for n in lengths]


def answers(llm: LLM, given: list[list[int]], params: SamplingParams = PARAMS) -> list[Any]:
    """What each prompt gives by itself, one after the other."""
    outputs = [llm.generate([prompt], params)[0] for prompt in given]
    return [
        (one.prompt_logprobs, [(o.token_ids, o.logprobs) for o in one.outputs]) for one in outputs
    ]


def both(name: str, **options: Any) -> tuple[LLM, LLM]:
    """With recorded prompts and without."""
    options = {"dtype": "bfloat16", "page_size": 4, "cache_memory": "4MiB", **options}
    recorded, plain = (
        open_llm(name, record_decode=records, **options) for records in (True, False)
    )
    return recorded, plain


@pytest.mark.parametrize("name", ROWS)
def test_every_model(name: str) -> None:
    """With reuse if its caches are unlike those of the others."""
    recorded, plain = both(name, enable_prefix_caching=name in CACHE_ROWS)
    given = prompts(name)
    assert answers(recorded, given) == answers(plain, given)
    tapes = prompt_tapes(recorded)
    assert tapes.num_calls if tapes.flaw is None else any(why in tapes.flaw for why in UNREADABLE)


@pytest.mark.parametrize("name", ["llama-grouped-heads", HYBRID, MLA])
def test_these_are_recorded_by_padded_size_and_pieces(name: str) -> None:
    recorded, _ = both(name, enable_prefix_caching=False)
    answers(recorded, prompts(name))
    tapes = prompt_tapes(recorded)
    assert tapes.flaw is None
    assert tapes.num_calls.keys() == {PromptShape(STEP, 0, True), PromptShape(2 * STEP, 0, True)}


def test_a_prompt_that_begins_as_another_goes_on_from_its_pages() -> None:
    recorded, plain = both(HYBRID)
    (first,) = prompts(HYBRID, (40,))
    given = [first[:n] + [n] * more for n in (30, 20, 12) for more in (3, 9, 15, 20, 5)]
    assert answers(recorded, [first, *given]) == answers(plain, [first, *given])
    assert any(shape.pieces > 1 for shape in prompt_tapes(recorded, starts_anew=False).num_calls)


def test_padding_writes_nothing() -> None:
    """What nobody holds stays as it was, all over the pool."""
    pools: list[torch.Tensor] = []
    for llm in both(HYBRID, enable_prefix_caching=False):
        llm.engine.pool.bytes.fill_(0xFF)
        answers(llm, prompts(HYBRID))
        pools.append(llm.engine.pool.bytes.clone())
    assert torch.equal(*pools)


def test_logprobs_of_prompts_need_more_than_a_tape_has() -> None:
    recorded, plain = both(HYBRID, enable_prefix_caching=False)
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=2)
    given = prompts(HYBRID)
    assert answers(recorded, given, params) == answers(plain, given, params)
    assert not prompt_tapes(recorded).num_calls


def test_longer_prompts_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taped_decode, "MOST_TOKENS", STEP)
    recorded, plain = both(HYBRID, enable_prefix_caching=False)
    given = prompts(HYBRID)
    assert answers(recorded, given) == answers(plain, given)
    assert prompt_tapes(recorded).num_calls.keys() == {PromptShape(STEP, 0, True)}


def test_hooks_are_called() -> None:
    recorded, _ = both(HYBRID, enable_prefix_caching=False)
    given = prompts(HYBRID)
    answers(recorded, given)
    calls: list[int] = []
    hook = recorded.engine.model.register_forward_hook(lambda *_: calls.append(1))
    answers(recorded, given[:2])
    hook.remove()
    assert len(calls) >= 2


def test_a_replaced_weight_is_seen() -> None:
    recorded, plain = both(HYBRID, enable_prefix_caching=False)
    given = prompts(HYBRID)
    before = answers(recorded, given)
    for llm in (recorded, plain):
        embedding = llm.engine.model.model.embed_tokens
        embedding.weight = torch.nn.Parameter(embedding.weight.flip(0), requires_grad=False)
    found = answers(recorded, given)
    assert found == answers(plain, given) != before
