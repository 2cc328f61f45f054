"""Padded decode steps by Triton's kernels read no length in the host's memory."""

from typing import Any

import pytest
import torch

from hybridrt import LLM, SamplingParams
from hybridrt.batch import ForwardBatch
from hybridrt.engine.cuda_graphs import without_host_lengths
from hybridrt.engine.static_decode import StaticBatches, StaticDecode, decode_step
from hybridrt.layers import attention, mla
from hybridrt.layers.cached import CachedLayer
from tests.engine.small import save_checkpoint, small_llm
from tests.engine.test_known_bugs import MIXERS
from tests.kernels.triton.conftest import IN_INTERPRETER

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=0)


@IN_INTERPRETER
@pytest.mark.parametrize("mixer", ["attention", "mla", "mamba1", "mamba2", "moe"])
def test_a_padded_step_gives_what_the_reference_gives(
    place: Any, put_in: Any, mixer: str, tmp_path: Any
) -> None:
    from hybridrt.kernels.triton.mla_attention import mla_attention
    from hybridrt.kernels.triton.paged_attention import paged_attention

    path = save_checkpoint(tmp_path / mixer, layers=[MIXERS[mixer]])
    expected = _logprobs(small_llm(path))
    llm = small_llm(path)
    for module in llm.engine.model.modules():
        if isinstance(module, CachedLayer):
            module.state_backend = "triton"
    put_in(attention, "paged_attention", paged_attention)
    put_in(mla, "mla_attention", mla_attention)
    step, sizes = decode_step(llm.engine.model), [4, 5]
    batches = StaticBatches(
        llm.plan.groups, sizes, llm.max_model_len, torch.device("cpu"), switches_rope=False
    )
    seen: list[ForwardBatch] = []

    def on_device_alone(batch: ForwardBatch) -> torch.Tensor:
        seen.append(without_host_lengths(batch))
        return step(seen[-1])

    llm.engine._runner.static_decode = StaticDecode(batches, on_device_alone)
    assert _logprobs(llm) == pytest.approx(expected, abs=1e-4)
    assert seen


def _logprobs(llm: LLM) -> list[float]:
    outputs = llm.generate([[1] * 3, [2] * 6, [3] * 9], GREEDY)
    logprobs = [output.outputs[0].logprobs for output in outputs]
    return [of[token].logprob for row in logprobs for of in row or () for token in of]
