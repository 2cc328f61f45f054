"""Models whose weights are rounded while they are loaded, experts too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hybridrt import LLM, SamplingParams
from hybridrt.engine.taped_decode import TapedDecode
from hybridrt.kernels.quantised_linear import QuantisedMatrices, Quantization
from hybridrt.layers.latent_expansion import LatentExpansion
from tests.harness.tolerance import rms

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
LATENTS: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "eos_token_id": None,
}
PROMPTS = [[5, 9, 2, 7], [3] * 20, [*range(30)]]
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts of whole blocks and groups, which the tiny models of the suite have not."""
    return _saved("qwen3_moe", SIZES, tmp_path_factory)


@pytest.fixture(scope="module")
def latent_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """And heads of whole groups."""
    return _saved("deepseek_v2", LATENTS, tmp_path_factory)


def _saved(kind: str, sizes: dict[str, Any], paths: pytest.TempPathFactory) -> Path:
    path = paths.mktemp("rounded")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **sizes, initializer_range=0.1)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    return path


def open_llm(path: Path, quantization: Quantization | None, **options: Any) -> LLM:
    rest = {"cache_memory": "2MiB", "max_model_len": 64, "enable_prefix_caching": False}
    return LLM(path, dtype="bfloat16", quantization=quantization, **rest, **options)


def answers(llm: LLM, prompts: list[list[int]]) -> list[Any]:
    outputs = [output.outputs[0] for output in llm.generate(prompts, PARAMS)]
    return [(one.token_ids, one.logprobs) for one in outputs]


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize(("name", "stacks"), [("checkpoint", 4), ("latent_checkpoint", 2)])
def test_steps_are_recorded_and_nothing_depends_on_that_or_on_company(
    name: str, stacks: int, quantization: Quantization, request: pytest.FixtureRequest
) -> None:
    checkpoint = request.getfixturevalue(name)
    llm = open_llm(checkpoint, quantization)
    assert sum(isinstance(m, QuantisedMatrices) for m in llm.engine.model.modules()) == stacks
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


@pytest.mark.parametrize(("quantization", "most"), [("int8", 0.7), ("int4", 0.1)])
def test_steps_read_few_bits_of_what_prompts_read_whole(
    latent_checkpoint: Path, quantization: Quantization, most: float
) -> None:
    """Steps that read the latter, too, differ by what bfloat16 does: with 8 bits not much less."""

    def steps(llm: LLM) -> torch.Tensor:
        """Log-probabilities of the second token, which is a decode's."""
        params = PARAMS.model_copy(update={"max_tokens": 2, "logprobs": LATENTS["vocab_size"]})
        outputs = llm.generate([[*prompt, 7] for prompt in PROMPTS], params)
        found = [output.outputs[0].logprobs for output in outputs]
        return torch.tensor(
            [[one[1][token].logprob for token in range(len(one[1]))] for one in found if one]
        )

    llm, exact = (open_llm(latent_checkpoint, kind) for kind in (quantization, None))
    few_bits = steps(llm)
    expands = [m for m in llm.engine.model.modules() if isinstance(m, LatentExpansion)]
    assert len(expands) == 2
    for expand in expands:
        assert expand.rounded_uk is not None and expand.rounded_uv is not None
        expand.rounded_uk = expand.rounded_uv = None
    whole = steps(llm)
    assert not torch.equal(few_bits, whole)
    assert rms(few_bits - whole) < most * rms(whole - steps(exact))
