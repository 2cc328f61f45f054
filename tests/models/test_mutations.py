"""No weight is there for nothing: with any one of a checkpoint's tensors zeroed, the model
answers otherwise."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrt import LLM, SamplingParams
from hybridrt.engine.fit import fit
from hybridrt.engine.formats import checkpoint_tensors
from hybridrt.engine.slots import place_of
from hybridrt.layers.linear import FusedLinear
from tests.oracle import TINY, Tiny, tiny_checkpoint

LEAST_CHANGE = 1e-4
"""Of some log-probability, in nats. The same computation twice gives the same bits."""

WITHOUT_EFFECT: Mapping[str, str] = {}
"""Expressions of `<model_type>: <tensor>` -> why zeroing it changes nothing."""

ROUTER_BIASES = ("e_score_correction_bias", "expert_bias")

_FIRST: Mapping[str, Tiny] = {row.model_type: row for row in reversed(TINY)}


def _logprobs(llm: LLM, prompts: list[list[int]]) -> Tensor:
    """Of the prompts' own tokens, and of the likeliest behind them."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=0, prompt_logprobs=0)
    found: list[float] = []
    for output in llm.generate(prompts, params):
        assert output.prompt_logprobs is not None and output.outputs[0].logprobs is not None
        rows = [*output.prompt_logprobs, *output.outputs[0].logprobs]
        found += [next(iter(row.values())).logprob for row in rows if row]
    return torch.tensor(found)


class Mutations:
    """A loaded model, whose tensors are zeroed one at a time."""

    def __init__(self, row: Tiny) -> None:
        path = tiny_checkpoint(row.name)
        self.llm = LLM(
            str(path),
            device="cpu",
            dtype="float32",
            cache_memory="16MiB",
            enable_prefix_caching=False,
        )
        self.model = self.llm.engine.model
        draw = torch.Generator().manual_seed(0)
        self.prompts = torch.randint(row.config["vocab_size"], (2, 48), generator=draw).tolist()
        layouts: dict[Any, Any] = {}
        self.places = {
            slot.names[0]: place_of(slot, layouts)
            for slot in fit(self.model, checkpoint_tensors(path)).slots
        }

    def logprobs(self) -> Tensor:
        """With the weights as they are now."""
        self.model.prepare(self.llm.max_model_len, torch.device("cpu"))
        return _logprobs(self.llm, self.prompts)

    def unseen(self, names: Iterable[str]) -> list[str]:
        """Those of these tensors that may as well be zero."""
        right = self.logprobs()
        found = [name for name in names if not self._change(name, right) > LEAST_CHANGE]
        assert torch.equal(right, self.logprobs())
        return found

    def _change(self, name: str, right: Tensor) -> float:
        place = self.places[name]
        kept = place.clone()
        place.zero_()
        change = (self.logprobs() - right).abs().max().item()
        place.copy_(kept)
        return change

    def let_every_expert_be_chosen(self) -> None:
        """Some biases of a router are so low that their experts never are."""
        for name, place in self.places.items():
            if name.endswith(ROUTER_BIASES):
                place.zero_()


@pytest.mark.parametrize("model_type", _FIRST)
def test_every_weight_counts(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Sorted rows are copies, and what is zeroed here has to be what is multiplied.
    monkeypatch.setattr(FusedLinear, "sort", lambda _: None)
    mutations = Mutations(_FIRST[model_type])
    unseen = mutations.unseen(mutations.places)
    if any(".experts." in name for name in unseen):
        mutations.let_every_expert_be_chosen()
        experts = mutations.unseen(name for name in unseen if ".experts." in name)
        unseen = [*(name for name in unseen if ".experts." not in name), *experts]
    unseen = [name for name in unseen if not _known(f"{model_type}: {name}")]
    assert not unseen, f"{model_type}: zeroing these changes nothing"


def _known(tensor: str) -> bool:
    return any(re.fullmatch(pattern, tensor) for pattern in WITHOUT_EFFECT)
