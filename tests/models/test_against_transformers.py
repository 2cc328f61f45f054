"""Every model gives what `transformers`' full forward without a cache gives."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrt import LLM, SamplingParams
from tests.oracle import BFLOAT16, TINY, Tiny, tiny_checkpoint
from tests.oracle.answers import Answer, judge_all
from tests.oracle.forward import oracle_logprobs_of_all
from tests.oracle.two_times import errors, oracle_errors

LARGEST_ERROR = 1e-3
"""Of a log-probability, in float32, in nats."""


def _prompts(row: Tiny, lengths: Sequence[int]) -> list[list[int]]:
    draw = torch.Generator().manual_seed(zlib.crc32(row.name.encode()))
    vocab_size = row.config["vocab_size"]
    return [torch.randint(vocab_size, (length,), generator=draw).tolist() for length in lengths]


def _llm(path: Path, dtype: str, **options: Any) -> LLM:
    """Small pages and chunks, so that every prompt but the shortest is cut by both.

    Recorded steps are compared with others in tests/engine/test_taped_decode.py.
    """
    choices: dict[str, Any] = {
        "device": "cpu",
        "page_size": 4,
        "max_num_batched_tokens": 16,
        "cache_memory": "8MiB",
        "poison_freed_pages": True,
        "record_decode": False,
        **options,
    }
    return LLM(str(path), dtype=dtype, **choices)


def _answers(llm: LLM, prompts: list[list[int]]) -> list[Answer]:
    greedy = SamplingParams(
        temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0, prompt_logprobs=0
    )
    return [_answer(output) for output in llm.generate(prompts, greedy)]


def _answer(output: Any) -> Answer:
    completion = output.outputs[0]
    prompt, token_ids = output.prompt_token_ids, completion.token_ids
    assert output.prompt_logprobs[0] is None
    return Answer(
        prompt,
        token_ids,
        [of[token].logprob for token, of in zip(prompt, output.prompt_logprobs, strict=True) if of],
        [of[token].logprob for token, of in zip(token_ids, completion.logprobs, strict=True)],
    )


def _prompt_logprobs(llm: LLM, prompts: list[list[int]], vocab_size: int) -> list[Tensor]:
    everything = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=vocab_size)
    outputs: list[Any] = llm.generate(prompts, everything)
    return [
        torch.tensor([[row[t].logprob for t in range(vocab_size)] for row in o.prompt_logprobs[1:]])
        for o in outputs
    ]


def _change_by_an_early_mistake(row: Tiny, path: Path) -> float:
    """Of the oracle's log-probabilities behind the last token."""
    right = torch.randint(131, (41,), generator=torch.Generator().manual_seed(0)).tolist()
    wrong = [*right]
    wrong[row.earliest_seen] = (right[row.earliest_seen] + 1) % 131
    of_right, of_wrong = oracle_logprobs_of_all(path, [right, wrong])
    return (of_right[-1] - of_wrong[-1]).abs().max().item()


@pytest.mark.parametrize("row", TINY, ids=lambda row: row.name)
def test_float32_equals_the_full_forward(row: Tiny) -> None:
    """And that forward would tell a mistake at an early token, even at the last one."""
    path = tiny_checkpoint(row.name)
    assert _change_by_an_early_mistake(row, path) > 0.1
    answers = _answers(_llm(path, "float32"), _prompts(row, row.prompt_lengths))
    for answer, verdict in zip(answers, judge_all(path, answers, row.stepwise), strict=True):
        assert not verdict.wrong_tokens, f"after {len(answer.prompt)} prompt tokens"
        assert verdict.error <= LARGEST_ERROR, f"after {len(answer.prompt)} prompt tokens"


@pytest.mark.parametrize("row", BFLOAT16, ids=lambda row: row.name)
def test_bfloat16_errs_at_most_twice_as_far_as_the_oracle(row: Tiny) -> None:
    path = tiny_checkpoint(row.name, "bfloat16")
    prompts = _prompts(row, (17, 25, 41, 60))
    given = _prompt_logprobs(_llm(path, "bfloat16"), prompts, row.config["vocab_size"])
    ours, oracles = errors(path, prompts, given), oracle_errors(path, prompts)
    assert ours.typical <= 2 * oracles.typical
    if not row.has_experts:
        assert ours.total <= 2 * oracles.total
