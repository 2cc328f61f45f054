"""What a runtime answered, and how far that is from the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tests.oracle.forward import oracle_logprobs, oracle_logprobs_of_all

TIE = 1e-4
"""Two tokens whose log-probabilities are closer than this may change places."""


@dataclass(frozen=True)
class Answer:
    """One prompt and its greedy continuation.

    Attributes:
        prompt_logprobs: of the prompt's tokens from the second on.
        logprobs: of the tokens generated.
    """

    prompt: Sequence[int]
    token_ids: Sequence[int]
    prompt_logprobs: Sequence[float]
    logprobs: Sequence[float]


@dataclass(frozen=True)
class Verdict:
    """An answer against the oracle.

    Attributes:
        error: the largest error of a log-probability, of prompt or output.
        wrong_tokens: one line for each token that isn't the oracle's choice after
            the tokens before it, unless the two are tied.
    """

    error: float
    wrong_tokens: tuple[str, ...]


def judge(path: Path, answer: Answer) -> Verdict:
    """Compares with a full forward.

    Every generated token is judged by the prefix that the runtime chose it after, so
    one wrong token does not hide what follows. A full forward is causal, so its row t
    is what a forward over the first t + 1 tokens alone would give, and one over prompt
    and output is enough.
    """
    (verdict,) = judge_all(path, [answer])
    return verdict


def judge_all(path: Path, answers: Sequence[Answer], stepwise: bool = False) -> list[Verdict]:
    """Compares each, by one forward over all.

    `stepwise` is for models whose forwards aren't causal in that a longer sequence gives
    others before: it takes one over each prompt, and one for each token behind it.
    """
    if stepwise:
        expected: Sequence[Tensor] = [_rows(path, answer) for answer in answers]
    else:
        expected = oracle_logprobs_of_all(path, [_all_tokens(answer) for answer in answers])
    return [_judge(answer, rows) for answer, rows in zip(answers, expected, strict=True)]


def _judge(answer: Answer, expected: Tensor) -> Verdict:
    """`expected` are the oracle's log-probabilities `[tokens, vocab]` behind each token."""
    token_ids = torch.tensor(_all_tokens(answer)[1:])
    chosen = expected[: len(token_ids)].gather(1, token_ids[:, None]).squeeze(1)
    given = torch.tensor([*answer.prompt_logprobs, *answer.logprobs])
    assert given.shape == chosen.shape, f"{len(given)} logprobs, {len(chosen)} tokens to predict"
    # A NaN must not pass a comparison.
    error = (given - chosen).abs().nan_to_num(nan=torch.inf).max().item()
    steps = expected[len(answer.prompt) - 1 : len(token_ids)]
    return Verdict(error, tuple(_wrong_tokens(answer.token_ids, steps)))


def _all_tokens(answer: Answer) -> list[int]:
    return [*answer.prompt, *answer.token_ids]


def _rows(path: Path, answer: Answer) -> Tensor:
    """Of a forward over the prompt, then the last of one forward for each output token."""
    token_ids, prompt = _all_tokens(answer), len(answer.prompt)
    ends = range(prompt + 1, len(token_ids))
    last = [oracle_logprobs(path, token_ids[:end])[-1:] for end in ends]
    return torch.cat([oracle_logprobs(path, token_ids[:prompt]), *last])


def _wrong_tokens(token_ids: Sequence[int], steps: Tensor) -> list[str]:
    wrong = []
    for i, (token, logprobs) in enumerate(zip(token_ids, steps, strict=True)):
        best = int(logprobs.argmax())
        gap = (logprobs[best] - logprobs[token]).item()
        if gap > TIE:
            wrong.append(f"output token {i} is {token}, not {best} (likelier by {gap:.2g} nats)")
    return wrong
