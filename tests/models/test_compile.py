"""A decode step of a whole model as one graph, with caches of unlike dtypes in one pool."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrt import SamplingParams
from hybridrt.kernels import backend, linear
from tests.harness.engines import open_llm
from tests.harness.graphs import QUIET, Graphs

pytestmark = QUIET

PROMPTS = ([1] * 5, [2] * 7)
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=0)


def _decode(name: str, graphs: Graphs | None) -> tuple[list[Any], Tensor]:
    """Tokens with their log-probabilities, and every byte of the pool behind the last."""
    llm = open_llm(name, dtype="bfloat16", poison_freed_pages=False)
    for prompt in PROMPTS:
        llm.add_request(prompt, PARAMS)
    outputs = llm.step()
    if graphs is not None:
        torch.compiler.reset()
        llm.engine.model.compile(fullgraph=True, backend=graphs)
    while llm.has_unfinished:
        outputs = llm.step()
    return [output.outputs[0].logprobs for output in outputs], llm.engine.pool.bytes


@pytest.mark.parametrize(
    "name",
    [
        "hybrid_stack-every-mixer",
        "hybrid_stack-every-state-between-attention",
        "mistral_large4-shared-latents-and-selections",
        "deepseek_v4-every-kind-of-layer",
        "qwen4_exp_text-n-grams-in-two-layers",
        "minimax_m3_vl_text-three-blocks-of-four-tokens",
    ],
)
def test_tokens_and_every_byte_of_the_pool_are_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are in float32, beside convolutions' inputs, keys and latents in bfloat16."""
    # A graph can't take weights in oneDNN's own layout.
    monkeypatch.setattr(linear, "_onednn_takes", lambda weight: False)
    # In a graph norms, rotations and gates are plain torch, which rounds more often than numba.
    monkeypatch.setattr(backend, "has_numba", lambda *tensors: False)
    graphs = Graphs()
    logprobs, pool = _decode(name, graphs)
    expected, expected_pool = _decode(name, None)
    assert logprobs == expected
    assert torch.equal(pool, expected_pool)
    assert len(graphs.traced) == 1
