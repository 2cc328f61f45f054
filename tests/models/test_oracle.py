"""The oracle's table and its harness can tell right from wrong."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.oracle import TINY, Tiny, oracle_greedy, oracle_logprobs, tiny_checkpoint
from tests.oracle.answers import Answer, judge

_MODELS = (
    "llama",
    "qwen3",
    "deepseek_v2",
    "deepseek_v3",
    "mamba",
    "mamba2",
    "jamba",
    "bamba",
    "hybrid_stack",
)
_FIRST_ROWS = [next(row for row in TINY if row.model_type == model) for model in _MODELS]


def test_every_model_has_at_least_six_rows_each_for_its_own_reason() -> None:
    rows = Counter(row.model_type for row in TINY)
    assert {model: rows[model] >= 6 for model in _MODELS} == dict.fromkeys(_MODELS, True)
    assert len({row.name for row in TINY}) == len(TINY)


@pytest.mark.parametrize("row", _FIRST_ROWS, ids=lambda row: row.name)
def test_greedy_tokens_vary_and_logits_spread(row: Tiny) -> None:
    path, prompt = tiny_checkpoint(row.name), list(range(20))
    assert len(set(oracle_greedy(path, prompt, 12))) >= 4
    assert oracle_logprobs(path, prompt).std(-1).mean() > 1


def _cached_answer(path: Path, prompt: list[int]) -> Answer:
    """Of `transformers`' own cached generation, which is right for Llama."""
    model: Any = AutoModelForCausalLM.from_pretrained(path)
    output = model.generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=12,
        output_logits=True,
        return_dict_in_generate=True,
    )
    token_ids = output.sequences[0, len(prompt) :].tolist()
    logprobs = torch.cat(output.logits).log_softmax(-1)
    of_prompt = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    return Answer(
        prompt,
        token_ids,
        [of_prompt[t, token].item() for t, token in enumerate(prompt[1:])],
        [logprobs[t, token].item() for t, token in enumerate(token_ids)],
    )


def test_judge_accepts_the_right_answer_and_sees_wrong_ones() -> None:
    path = tiny_checkpoint(_FIRST_ROWS[0].name)
    answer = _cached_answer(path, list(range(3, 20)))
    verdict = judge(path, answer)
    assert verdict.error < 1e-4
    assert verdict.wrong_tokens == ()
    assert list(answer.token_ids) == oracle_greedy(path, answer.prompt, 12)

    off = replace(answer, logprobs=[*answer.logprobs[:-1], answer.logprobs[-1] + 2e-3])
    assert judge(path, off).error > 1e-3
    nan = replace(answer, prompt_logprobs=[float("nan"), *answer.prompt_logprobs[1:]])
    assert judge(path, nan).error == float("inf")
    other = replace(answer, token_ids=[(answer.token_ids[0] + 1) % 131, *answer.token_ids[1:]])
    assert judge(path, other).wrong_tokens[0].startswith("output token 0 is")
