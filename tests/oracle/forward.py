"""The oracle: a full forward without any cache, of `transformers` or of the dense twin."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from training.dense import DenseStack


@functools.lru_cache(maxsize=2)
def _model(path: Path, dtype: str) -> Any:
    """Token ids `[batch, tokens]` to logits `[batch, tokens, vocab]`."""
    fields = json.loads((path / "config.json").read_text())
    if fields["model_type"] == "hybrid_stack":
        stack = DenseStack(fields)
        stack.load_state_dict(load_file(path / "model.safetensors"))
        return stack
    config = AutoConfig.from_pretrained(path)
    # The plain form of its experts: the fast one refuses odd sizes.
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=getattr(torch, dtype))
    return lambda token_ids: model(token_ids, use_cache=False).logits


def oracle_logprobs(path: Path, token_ids: Sequence[int], dtype: str = "float32") -> Tensor:
    """Log-probabilities `[tokens, vocab]` of the token after each of `token_ids`."""
    (logprobs,) = oracle_logprobs_of_all(path, [token_ids], dtype)
    return logprobs


def oracle_logprobs_of_all(
    path: Path, sequences: Sequence[Sequence[int]], dtype: str = "float32"
) -> Sequence[Tensor]:
    """The same of each sequence, in one forward.

    Behind the shorter ones stand other tokens, which a causal forward doesn't let them see.
    """
    return _logprobs(path, tuple(map(tuple, sequences)), dtype)


@functools.lru_cache(maxsize=8)
@torch.no_grad()
def _logprobs(path: Path, sequences: tuple[tuple[int, ...], ...], dtype: str) -> Sequence[Tensor]:
    """Of the last ones that were asked for, which several errors are measured from."""
    longest = max(map(len, sequences))
    token_ids = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens in sequences])
    logprobs = _model(path, dtype)(token_ids).float().log_softmax(-1)
    return [of[: len(tokens)] for of, tokens in zip(logprobs, sequences, strict=True)]


def oracle_greedy(path: Path, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """The likeliest continuation, by one full forward per token."""
    token_ids = list(prompt)
    for _ in range(max_tokens):
        token_ids.append(int(oracle_logprobs(path, token_ids)[-1].argmax()))
    return token_ids[len(prompt) :]
