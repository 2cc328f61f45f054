"""The two-times rule: a runtime in bfloat16 errs at most twice as far as the oracle does.

Both are held against the oracle in float32 on the same bfloat16 weights. An error
is a position's: the root mean square over the vocabulary of the differences of
log-probabilities, so that it doesn't hang on one token of the vocabulary.

Over positions, two numbers are compared. The *typical* one is the median. The
*total* one is the root mean square, which the worst positions dominate. The total
is left out where experts are chosen: a choice nearly tied in float32 falls either
way in bfloat16, for the oracle as for the runtime, and the few positions where it
does would decide the comparison by luck.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tests.oracle.forward import oracle_logprobs_of_all


@dataclass(frozen=True)
class Errors:
    """Distance from the float32 oracle: over positions, the median and the root mean square."""

    typical: float
    total: float


def errors(path: Path, prompts: Sequence[Sequence[int]], logprobs: Sequence[Tensor]) -> Errors:
    """Of `logprobs[i]`, a `[tokens - 1, vocab]` for each prompt's tokens but its first."""
    per_position = [
        (given - right[:-1]).square().mean(-1)
        for given, right in zip(logprobs, oracle_logprobs_of_all(path, prompts), strict=True)
    ]
    squares = torch.cat(per_position)
    return Errors(squares.median().sqrt().item(), squares.mean().sqrt().item())


def oracle_errors(path: Path, prompts: Sequence[Sequence[int]]) -> Errors:
    """Of the oracle itself, run in bfloat16."""
    logprobs = oracle_logprobs_of_all(path, prompts, "bfloat16")
    return errors(path, prompts, [of[:-1] for of in logprobs])
