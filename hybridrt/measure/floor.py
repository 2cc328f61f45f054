"""The least time that a model's work can take on a machine of given limits.

A step reads every weight in use and all that is cached of its sequences,
multiplies every token with the weights in use, and attends to the tokens before it. Nothing
else is counted (norms, convolutions, scans, what is written), so that no implementation can be
below.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from hybridrt.cache.plan import CachePlan
from hybridrt.kernels.quantised_linear import QuantisedMatrices
from hybridrt.layers.linear import Linear
from hybridrt.layers.moe import Experts
from hybridrt.measure.attended import attentions, prompt_operations, step_operations
from hybridrt.measure.machine import Limits
from hybridrt.models.causal_lm import CausalLM, Embedding


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes to read, and operations of products (two a multiply-add)."""

    num_bytes: float
    operations: float

    def seconds(self, limits: Limits) -> float:
        """The least time: reading and computing may go on at once."""
        reading = self.num_bytes / limits.bytes_per_second
        return max(reading, self.operations / limits.operations_per_second)


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """The experts of a layer: how many, how many a token takes, and what all of them are."""

    count: int
    per_token: int
    num_bytes: int
    num_weights: int

    def share(self, tokens: int) -> float:
        """The share of them that so many tokens are expected to use, if all are as likely."""
        return 1 - (1 - self.per_token / self.count) ** tokens


class Floor:
    """The least work of a model's steps."""

    def __init__(self, model: CausalLM, plan: CachePlan) -> None:
        self._plan = plan
        weights = list(_read_weights(model))
        self._experts = list(_experts(model))
        self._dense_bytes = sum(weight.num_bytes for weight in weights)
        self._dense_bytes -= sum(experts.num_bytes for experts in self._experts)
        self._logits = model.lm_head.weight.numel()
        self._multiplied = sum(weight.numbers for weight in weights) - self._logits
        for experts in self._experts:
            self._multiplied -= experts.num_weights * (1 - experts.per_token / experts.count)
        self._attentions = list(attentions(model))

    def decode(self, batch: int, context: int) -> Work:
        """A step of sequences of so many cached tokens."""
        cached = batch * sum(layer.bytes_for(context) for layer in self._plan.layers)
        products = 2 * batch * (self._multiplied + self._logits)
        products += batch * sum(step_operations(a, context) for a in self._attentions)
        return Work(self.weight_bytes(batch) + cached, products)

    def prefill(self, batch: int, tokens: int) -> Work:
        """To the first token of prompts of so many tokens, however they are put into steps."""
        products = 2 * batch * (tokens * self._multiplied + self._logits)
        products += batch * sum(prompt_operations(a, tokens) for a in self._attentions)
        return Work(self.weight_bytes(batch * tokens), products)

    def weight_bytes(self, tokens: int) -> float:
        """Bytes of the weights that a step of so many tokens uses."""
        routed = sum(experts.num_bytes * experts.share(tokens) for experts in self._experts)
        return self._dense_bytes + routed


class _Weight(NamedTuple):
    """The bytes of a weight, and its numbers."""

    num_bytes: int
    numbers: int


def _read_weights(model: CausalLM) -> Iterator[_Weight]:
    """Every weight once, without embeddings, of which a step reads a few rows."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, Embedding)}
    return _weights_of(model, embeddings - {id(model.lm_head.weight)})


def _weights_of(module: nn.Module, leave_out: Collection[int] = ()) -> Iterator[_Weight]:
    """All weights inside, as many bytes as they have."""
    linears = {id(m.weight): m for m in module.modules() if isinstance(m, Linear)}
    for parameter in module.parameters():  # each once
        if id(parameter) not in leave_out:
            linear = linears.get(id(parameter))
            num_bytes = parameter.nbytes if linear is None else linear.num_bytes
            yield _Weight(num_bytes, parameter.numel())
    for matrices in module.modules():
        if isinstance(matrices, QuantisedMatrices):
            for index in range(len(matrices)):
                yield _Weight(matrices[index].num_bytes, matrices[index].num_weights)


def _experts(model: CausalLM) -> Iterator[RoutedExperts]:
    for module in model.modules():
        experts = getattr(module, "experts", None)
        if isinstance(experts, Experts):
            matrices = list(_weights_of(experts))
            yield RoutedExperts(
                count=len(experts.down_proj),
                per_token=min(_experts_per_token(module), len(experts.down_proj)),
                num_bytes=sum(matrix.num_bytes for matrix in matrices),
                num_weights=sum(matrix.numbers for matrix in matrices),
            )


def _experts_per_token(moe: nn.Module) -> int:
    """As its own or its router's config says; 1 where neither does, which no layer is below."""
    for holder in (moe, getattr(moe, "gate", None), getattr(moe, "router", None)):
        count = getattr(getattr(holder, "config", None), "num_experts_per_tok", None)
        if count is not None:
            return count
    return 1
