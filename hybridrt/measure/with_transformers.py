"""The side of `transformers`: a model's own forward and cache, in torch alone."""

import copy
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from hybridrt.engine.checkpoint import locate
from hybridrt.measure.timing import collector_off

if TYPE_CHECKING:
    from hybridrt.measure.runtime import Prompt


def load_transformers(model: str, dtype: torch.dtype, device: torch.device) -> "Transformers":
    """The checkpoint in transformers.

    Raises:
        ValueError: transformers is not installed, or can't load it.
    """
    check_installed()
    from transformers import AutoModelForCausalLM

    try:
        # Our own side has downloaded what wasn't here: this one asks no network.
        folder = locate(model, downloaded=True)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True
        )
    except (ValueError, OSError, KeyError) as error:
        why = str(error).partition("\n")[0]  # behind it are hints at other versions of it
        raise ValueError(f"transformers can't load {model}: {why}") from error
    return Transformers(loaded.eval().to(device))


def check_installed() -> None:
    """Raises a `ValueError` where transformers is not installed."""
    if find_spec("transformers") is None:
        raise ValueError(
            "transformers is not installed; to measure against it: pip install transformers"
        )


class Transformers:
    """A loaded model. Prompts of a batch have one length, so that none is padded."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._context: tuple[Prompt, Any] | None = None

    def prefill(self, prompts: "Sequence[Prompt]") -> float:
        return self.complete(prompts, 1)

    @torch.inference_mode()
    def complete(self, prompts: "Sequence[Prompt]", output_tokens: int) -> float:
        with collector_off():
            start = time.perf_counter()
            tokens, cache = self._forward(self._ids(prompts), None, 0)
            for step in range(output_tokens - 1):
                tokens, cache = self._forward(tokens, cache, len(prompts[0]) + step)
            return time.perf_counter() - start

    @torch.inference_mode()
    def decode(self, context: "Prompt", last: "Prompt", steps: int) -> list[float]:
        if self._context is None or self._context[0] != context:
            self._context = context, self._forward(self._ids([context]), None, 0)[1]
        cache = copy.deepcopy(self._context[1])
        tokens = self._ids([[token] for token in last])
        cache.reorder_cache(torch.zeros(len(last), dtype=torch.long, device=tokens.device))
        times: list[float] = []
        with collector_off():
            for step in range(steps):
                start = time.perf_counter()
                tokens, cache = self._forward(tokens, cache, len(context) + step)
                times.append(time.perf_counter() - start)
        return times

    def _forward(self, ids: torch.Tensor, cache: Any, position: int) -> tuple[torch.Tensor, Any]:
        """The next token of each row, known to the processor, and the cache behind it."""
        batch, count = ids.shape
        positions = torch.arange(position, position + count, device=ids.device)
        out = self._model(
            ids,
            past_key_values=cache,
            position_ids=positions.expand(batch, -1),
            use_cache=True,
            logits_to_keep=1,
        )
        tokens = out.logits[:, -1:].argmax(-1)
        tokens.tolist()
        return tokens, out.past_key_values

    def _ids(self, prompts: "Sequence[Prompt]") -> torch.Tensor:
        return torch.tensor([list(prompt) for prompt in prompts], device=self._model.device)
