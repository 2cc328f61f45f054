"""One forward of transformers' model, recorded, and what its cache holds behind it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hybridrt.introspection.capture import Calls, recording


@dataclass(frozen=True, slots=True)
class TheirRun:
    """What transformers' model gives for some tokens.

    Attributes:
        calls: of its modules.
        logits: `[tokens, vocab]`.
        cache: for each layer its cached tensors, under our names; those that it has.
        note: why there are none, if its forward with a cache fails.
    """

    calls: Calls
    logits: Tensor
    cache: Sequence[Mapping[str, Tensor]]
    note: str | None


def run_theirs(model: nn.Module, layers: Sequence[nn.Module], token_ids: Sequence[int]) -> TheirRun:
    """Runs it twice: without a cache, which is the oracle, and with one, to see what it keeps."""
    training = [module for module in model.modules() if module.training]
    device = next(model.parameters()).device
    input_ids = torch.tensor([list(token_ids)], device=device)
    model.eval()
    try:
        with torch.no_grad():
            with recording(model, layers) as calls:
                logits = model(input_ids=input_ids, use_cache=False).logits[0]
            kept, note = _run_with_cache(model, input_ids)
    finally:
        for module in training:
            module.training = True
    return TheirRun(calls, logits, _cached(kept, len(layers)), note)


def _run_with_cache(model: nn.Module, input_ids: Tensor) -> tuple[Any, str | None]:
    try:
        return model(input_ids=input_ids, use_cache=True), None
    except Exception as error:  # a fault of theirs, of any kind, takes nothing from the rest
        return None, f"nothing cached is compared: with a cache transformers' model fails, {error}"


def _cached(output: Any, num_layers: int) -> list[Mapping[str, Tensor]]:
    """Nothing where the model has no cache, or one that isn't by layers."""
    cache: Any = getattr(output, "past_key_values", None)
    cache = getattr(output, "cache_params", None) if cache is None else cache
    layers = getattr(cache, "layers", ())
    if len(layers) != num_layers:
        return [{} for _ in range(num_layers)]
    return [_tensors(layer) for layer in layers]


def _tensors(layer: Any) -> Mapping[str, Tensor]:
    """Keys and values `[tokens, heads, dim]`, states as they are; of one sequence."""
    found: dict[str, Tensor] = {}
    for ours, theirs in (("k", "keys"), ("v", "values")):
        tensor = getattr(layer, theirs, None)
        if isinstance(tensor, Tensor) and tensor.dim() == 4:
            found[ours] = tensor[0].transpose(0, 1)
    for ours, theirs in (("conv_state", "conv_states"), ("ssm_state", "recurrent_states")):
        tensors = _all(getattr(layer, theirs, None))
        if len(tensors) == 1:
            found[ours] = tensors[0][0]
    return found


def _all(states: Any) -> list[Tensor]:
    values: Iterable[Any] = states.values() if isinstance(states, Mapping) else states or ()
    return [value for value in values if isinstance(value, Tensor)]
