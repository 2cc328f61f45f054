"""What the dense twin of a `hybrid_stack` attends to and forgets, in float64, layer by layer."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pytest import MonkeyPatch
from safetensors.torch import load_file
from torch import Tensor

import training.attention
import training.mamba
import training.recurrent
from tests.oracle.checkpoints import tiny_checkpoint
from training.dense import DenseStack


@dataclass
class DenseCalls:
    """By layer, in their order: softmax weights `[heads, queries, keys]`, of which a sink's are
    the last, and logarithms of decays `[tokens, heads, channels]`.
    """

    weights: list[Tensor] = field(default_factory=list)
    log_decays: list[Tensor] = field(default_factory=list)

    def attended(self, scores: Tensor, seen: Tensor, sinks: Tensor | None) -> None:
        """Takes in the scores of an attention layer."""
        scores = scores[0].masked_fill(~seen, -torch.inf)
        nothing = torch.full_like(scores[..., :1], -torch.inf)
        if sinks is not None:
            nothing = sinks[:, None, None].expand_as(nothing)
        self.weights.append(torch.cat([scores, nothing], dim=-1).softmax(-1))


def dense_calls(name: str, tokens: Sequence[int], patch: MonkeyPatch) -> DenseCalls:
    """Runs the twin, and looks at what its mixers give to the functions that they call."""
    path, calls = tiny_checkpoint(name), DenseCalls()
    config = json.loads((path / "config.json").read_text())
    model = DenseStack(config).double()
    model.load_state_dict(load_file(path / "model.safetensors"))

    def see(module: Any, function: str, note: Callable[..., None]) -> None:
        original = getattr(module, function)

        def call(*args: Any) -> Any:
            note(*args)
            return original(*args)

        patch.setattr(module, function, call)

    def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> None:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        calls.attended(scale * q @ k.mT, seen, None)

    def capped(
        q: Tensor, k: Tensor, v: Tensor, seen: Tensor, cap: float | None, sinks: Tensor | None
    ) -> None:
        scores = q.shape[-1] ** -0.5 * q @ k.mT
        calls.attended(scores if cap is None else cap * torch.tanh(scores / cap), seen, sinks)

    def rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> None:
        calls.log_decays.append(decay[0].log())

    def dual(x: Tensor, log_decay: Tensor, *_: Any) -> None:
        calls.log_decays.append(log_decay[0, ..., None])

    def scan(decay: Tensor, update: Tensor) -> None:
        calls.log_decays.append(decay[0].log().mT)  # a head for each number of a state

    see(training.attention, "causal_attention", causal)
    see(training.attention, "capped_attention", capped)
    see(training.recurrent, "delta_rule", rule)
    see(training.mamba, "chunked_ssd", dual)
    see(training.mamba, "linear_scan", scan)
    with torch.no_grad():
        model(torch.tensor([[*tokens]]))
    return calls
