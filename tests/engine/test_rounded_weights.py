"""Models whose weights are rounded while they are loaded, experts too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hybridrt import LLM, SamplingParams
from hybridrt.engine.taped_decode import TapedDecode
from hybridrt.kernels.quantised_linear import QuantisedMatrices, Quantization

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "eos_token_id": None,
}
PROMPTS = [[5, 9, 2, 7], [3] * 20, [*range(30)]]
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts of whole blocks and groups, which the tiny models of the suite have not."""
    path = tmp_path_factory.mktemp("rounded")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model("qwen3_moe", **SIZES, initializer_range=0.1)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    return path


def open_llm(path: Path, quantization: Quantization | None, **options: Any) -> LLM:
    rest = {"cache_memory": "2MiB", "max_model_len": 64, "enable_prefix_caching": False}
    return LLM(path, dtype="bfloat16", quantization=quantization, **rest, **options)


def answers(llm: LLM, prompts: list[list[int]]) -> list[Any]:
    outputs = [output.outputs[0] for output in llm.generate(prompts, PARAMS)]
    return [(one.token_ids, one.logprobs) for one in outputs]


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_steps_are_recorded_and_nothing_depends_on_that_or_on_company(
    checkpoint: Path, quantization: Quantization
) -> None:
    llm = open_llm(checkpoint, quantization)
    assert sum(isinstance(m, QuantisedMatrices) for m in llm.engine.model.modules()) == 4
    together = answers(llm, PROMPTS)
    taped = llm.engine._runner.static_decode
    assert isinstance(taped, TapedDecode) and taped.decode_tapes.flaw is None
    assert 3 in taped.decode_tapes.num_calls
    assert answers(open_llm(checkpoint, quantization, record_decode=False), PROMPTS) == together
    assert [answers(llm, [prompt])[0] for prompt in PROMPTS] == together


@pytest.mark.parametrize(("quantization", "most"), [("int8", 0.1), ("int4", 0.7)])
def test_they_are_near_what_they_were(
    checkpoint: Path, quantization: Quantization, most: float
) -> None:
    """A prompt's log-probabilities. With experts in each other's place they are off by 1.2."""
    params = PARAMS.model_copy(update={"max_tokens": 1, "prompt_logprobs": 0})

    def logprobs(kind: Quantization | None) -> torch.Tensor:
        (output,) = open_llm(checkpoint, kind).generate([PROMPTS[2]], params)
        assert output.prompt_logprobs is not None
        tops = [next(iter(one.values())).logprob for one in output.prompt_logprobs if one]
        return torch.tensor(tops)

    error = (logprobs(quantization) - logprobs(None)).square().mean().sqrt()
    assert 0 < error < most
