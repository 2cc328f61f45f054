"""A model run with another session's state has these logits: transformers says which."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.oracle.checkpoints import tiny_checkpoint
from tests.session.open_sessions import DEEPSEEK, MAMBA, PROMPT, open_llm

LLAMA = "llama-grouped-heads"
MAMBA2 = "mamba2-two-groups"
DELTA = "qwen3_next-attention-in-the-middle"
OTHERS = [5 + t * 13 % 60 for t in range(len(PROMPT))]
SUFFIX = [7, 11, 13, 2]
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


class Oracle:
    """A model of transformers and what its cache holds of two prompts."""

    def __init__(self, name: str) -> None:
        path = tiny_checkpoint(name)
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    @torch.no_grad()
    def run(self, tokens: list[int]) -> Any:
        return self._cache(self.model(torch.tensor([tokens]), use_cache=True))

    @torch.no_grad()
    def logits_behind(self, cache: Any, tokens: list[int]) -> list[Tensor]:
        """The logits behind each of these tokens, one after the other, with that cache."""
        found: list[Tensor] = []
        name = "past_key_values"
        if "cache_params" in self.model.forward.__code__.co_varnames:
            name = "cache_params"
        for token in tokens:
            out = self.model(torch.tensor([[token]]), use_cache=True, **{name: cache})
            found.append(out.logits[0, -1].float())
            cache = self._cache(out)
        return found

    @staticmethod
    def _cache(out: Any) -> Any:
        found = getattr(out, "cache_params", None)
        return out.past_key_values if found is None else found


def logits_behind(session: Any, tokens: list[int]) -> list[Tensor]:
    found: list[Tensor] = []
    for token in tokens:
        session.append([token])
        found.append(session.logits)
    return found


def assert_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for given, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(given, right, **CLOSE)


def copy_states(target: Any, source: Any, index: int) -> None:
    """Another cache's states of one layer, the convolution's inputs among them."""
    ours, theirs = target.layers[index], source.layers[index]
    for name in ("conv_states", "recurrent_states"):
        for key, state in getattr(theirs, name).items():
            getattr(ours, name)[key] = state.clone()


@pytest.mark.parametrize("name", [MAMBA, MAMBA2, DELTA])
def test_another_sessions_states_in_one_layer(name: str) -> None:
    oracle = Oracle(name)
    llm = open_llm(name, cache_memory="4MiB")
    with llm.session(PROMPT) as session, llm.session(OTHERS) as other:
        plain = logits_behind(session.fork(), SUFFIX)
        assert_close(plain, oracle.logits_behind(oracle.run(PROMPT), SUFFIX))
        for layer, theirs in zip(session.layers, other.layers, strict=True):
            if layer.kind != "state":
                continue
            index = int(layer.name.split(".layers.")[1].split(".")[0])
            cache = oracle.run(PROMPT)
            copy_states(cache, oracle.run(OTHERS), index)
            right = oracle.logits_behind(cache, SUFFIX)
            with layer.write(theirs.read()):
                ours = logits_behind(session, SUFFIX)
            assert_close(ours, right)
            assert (ours[0] - plain[0]).abs().max() > 1e-2, "it makes a difference"
            with layer.write(theirs.read()):
                session.append(SUFFIX)  # at once, in a chunk that starts from the state
                assert_close([session.logits], right[-1:])


@pytest.mark.parametrize("name", [LLAMA, DEEPSEEK])
@pytest.mark.parametrize("tokens", [slice(None), slice(3, 9), range(30, 2, -5), 36])
def test_another_sessions_keys_and_values_of_some_tokens(tokens: Any, name: str) -> None:
    """MLA's latents are those of keys and values, which are what transformers caches of it."""
    oracle = Oracle(name)
    llm = open_llm(name)
    rows = tokens if isinstance(tokens, slice) else torch.arange(37)[torch.tensor(tokens)]
    rows = torch.arange(37)[rows].reshape(-1)
    with llm.session(PROMPT) as session, llm.session(OTHERS) as other:
        for index, layer in enumerate(session.layers):
            cache, theirs = oracle.run(PROMPT), oracle.run(OTHERS).layers[index]
            cache.layers[index].keys[:, :, rows] = theirs.keys[:, :, rows]
            cache.layers[index].values[:, :, rows] = theirs.values[:, :, rows]
            values = {n: x[rows] for n, x in other.layers[index].read().items()}
            plain = logits_behind(session.fork(), SUFFIX)
            with layer.write(values, tokens=tokens):
                ours = logits_behind(session, SUFFIX)
            assert_close(ours, oracle.logits_behind(cache, SUFFIX))
            assert (ours[0] - plain[0]).abs().max() > 10 * CLOSE["atol"], "it makes a difference"


@pytest.mark.parametrize("name", [LLAMA, MAMBA2, DELTA])
def test_a_layer_that_forgets(name: str) -> None:
    """Attention adds nothing for tokens whose values are zero; states begin anew."""
    oracle = Oracle(name)
    llm = open_llm(name)
    with llm.session(PROMPT) as session:
        for layer in session.layers:
            index = int(layer.name.split(".layers.")[1].split(".")[0])
            cache = oracle.run(PROMPT)
            if layer.kind == "state":
                for states in (
                    cache.layers[index].conv_states,
                    cache.layers[index].recurrent_states,
                ):
                    for state in states.values():
                        state.zero_()
            else:
                cache.layers[index].values[:, :, :20] = 0
            tokens = None if layer.kind == "state" else range(20)
            with layer.ablate(tokens):
                ours = logits_behind(session, SUFFIX)
            assert_close(ours, oracle.logits_behind(cache, SUFFIX))
