"""What Inkling's checkpoints have beyond what the table of tiny models shows."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridrt import LLM, SamplingParams
from tests.oracle import oracle_logprobs, tiny_checkpoint

NUM_TOKENS = 120  # of 131
PROMPT = [7, 119, 3, 64, 11, 90, 2, 45]


@pytest.fixture(
    params=[
        "inkling_mm_model-full-attention-between-windows",
        "inkling2-windows-and-full-attention-by-turns",
    ]
)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One whose last rows of the vocabulary are padding, with what predicts further tokens."""
    path = tmp_path / "padded"
    shutil.copytree(tiny_checkpoint(request.param), path)
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["unpadded_vocab_size"] = NUM_TOKENS
    if request.param.startswith("inkling_mm_model"):
        config["mtp_config"] = {"num_nextn_predict_layers": 1, "chain_hidden_post_norm": False}
    (path / "config.json").write_text(json.dumps(config))
    tensors = load_file(path / "model.safetensors")
    if request.param.startswith("inkling_mm_model"):
        tensors["model.mtp.layers.0.mlp_norm.weight"] = torch.ones(48)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_padding_of_the_vocabulary_is_no_token(checkpoint: Path) -> None:
    llm = LLM(str(checkpoint), device="cpu", dtype="float32", cache_memory="4MiB")
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=131)
    logprobs = llm.generate(PROMPT, params)[0].outputs[0].logprobs
    assert logprobs is not None
    given = torch.tensor([logprobs[0][token].logprob for token in range(131)])
    assert given[NUM_TOKENS:].isinf().all()
    right = oracle_logprobs(checkpoint, PROMPT)[-1]
    assert len(right) == NUM_TOKENS
    torch.testing.assert_close(given[:NUM_TOKENS], right, rtol=0, atol=1e-4)


def test_padding_is_never_drawn(checkpoint: Path) -> None:
    llm = LLM(str(checkpoint), device="cpu", dtype="float32", cache_memory="4MiB")
    params = SamplingParams(temperature=50.0, max_tokens=200, seed=1, ignore_eos=True)
    drawn = llm.generate([3], params)[0].outputs[0].token_ids
    assert len(set(drawn)) > 60 and max(drawn) < NUM_TOKENS


def test_experts_of_inkling2_are_decoded_though_the_config_does_not_say_so(tmp_path: Path) -> None:
    source = tiny_checkpoint("inkling2-windows-and-full-attention-by-turns")
    tensors, config = load_file(source / "model.safetensors"), (source / "config.json").read_text()
    plain, released = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith(("w13_weight", "w2_weight"))]:
        weight = tensors[name]
        numbers = (4 * weight).to(torch.float8_e4m3fn)
        scales = torch.full((*weight.shape[:-1], -(-weight.shape[-1] // 32)), 125).byte()
        released |= {name: numbers, f"{name}_scale": scales}  # 2 ** (125 - 127)
        plain[name] = numbers.float() / 4
    answers: list[list[int]] = []
    for part, stored in (("plain", plain), ("released", released)):
        (path := tmp_path / part).mkdir()
        save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
        fields = json.loads(config)
        del fields["transformers_version"]
        (path / "config.json").write_text(json.dumps(fields))
        llm = LLM(str(path), device="cpu", dtype="float32", cache_memory="4MiB")
        output = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=20))[0]
        answers.append(list(output.outputs[0].token_ids))
    assert answers[0] == answers[1] and len(set(answers[0])) > 1
