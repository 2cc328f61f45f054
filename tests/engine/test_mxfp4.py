"""MXFP4: decoded bit by bit, and as the experts of gpt-oss."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from hybridrt import LLM, SamplingParams
from hybridrt.engine.mxfp4 import dequantise_mxfp4
from tests.oracle import tiny_checkpoint
from tests.oracle.answers import Answer, judge

ROW = "gpt_oss-sizes-in-whole-blocks-of-32"
PROJECTIONS = ("gate_up_proj", "down_proj")


def _number(code: int) -> float:
    """E2M1, from its bits: a sign, two of the exponent with a bias of 1, one of the mantissa."""
    sign, exponent, mantissa = code >> 3, (code >> 1) & 3, code & 1
    magnitude = mantissa * 0.5 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1)
    return -magnitude if sign else magnitude


@pytest.mark.parametrize("scale", [0, 1, 100, 127, 130, 200, 250])
def test_every_code_times_every_kind_of_scale(scale: int) -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(16, 16)
    decoded = dequantise_mxfp4(blocks, torch.full((16,), scale, dtype=torch.uint8))
    expected = [_number(c) * 2.0 ** (scale - 127) for b in range(256) for c in (b & 15, b >> 4)]
    assert decoded.flatten().tolist() == expected


def _encode(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks and scales near the matrices, `[experts, columns, rows]` as the model has them."""
    grouped = weight.mT.unflatten(-1, (-1, 32))
    exponent = torch.floor(torch.log2(grouped.abs().amax(-1) / 6)) + 1
    numbers = torch.tensor([_number(code) for code in range(16)])
    scaled = grouped / 2 ** exponent[..., None]
    codes = (scaled[..., None] - numbers).abs().argmin(-1).to(torch.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponent + 127).to(torch.uint8)


def _quantised(source: Path, folder: Path) -> tuple[Path, Path]:
    """The checkpoint with its experts in MXFP4; and with what these stand for in float32."""
    packed, plain = load_file(source / "model.safetensors"), {}
    for name in [name for name in packed if name.endswith(PROJECTIONS)]:
        blocks, scales = _encode(packed.pop(name))
        packed |= {name + "_blocks": blocks, name + "_scales": scales}
        plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    plain |= {name: t for name, t in packed.items() if not name.endswith(("_blocks", "_scales"))}
    config = json.loads((source / "config.json").read_text())
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    for name, tensors, extra in (
        ("packed", packed, {"quantization_config": method}),
        ("plain", plain, {}),
    ):
        (folder / name).mkdir()
        save_file(tensors, folder / name / "model.safetensors", metadata={"format": "pt"})
        (folder / name / "config.json").write_text(json.dumps(config | extra))
    return folder / "packed", folder / "plain"


def _open(path: Path) -> LLM:
    return LLM(str(path), device="cpu", cache_memory="8MiB", dtype="float32")


def test_experts_are_what_transformers_makes_of_them(tmp_path: Path) -> None:
    packed, plain = _quantised(tiny_checkpoint(ROW), tmp_path)
    greedy = SamplingParams(temperature=0, max_tokens=8, logprobs=0, prompt_logprobs=0)
    prompt = list(range(30))
    (output,) = _open(packed).generate([prompt], greedy)
    given, rows = output.outputs[0], output.prompt_logprobs
    assert given.logprobs is not None and rows is not None
    answer = Answer(
        prompt,
        given.token_ids,
        [row[token].logprob for token, row in zip(prompt, rows, strict=True) if row],
        [row[token].logprob for token, row in zip(given.token_ids, given.logprobs, strict=True)],
    )
    verdict = judge(plain, answer)
    assert not verdict.wrong_tokens
    assert verdict.error <= 1e-3
    assert judge(tiny_checkpoint(ROW), answer).error > 0.05, "four bits show"


@pytest.mark.parametrize("lost", ["_blocks", "_scales"])
def test_one_without_the_other_is_refused(lost: str, tmp_path: Path) -> None:
    packed, _ = _quantised(tiny_checkpoint(ROW), tmp_path)
    path = packed / "model.safetensors"
    name = "model.layers.0.mlp.experts.down_proj"
    save_file({n: t for n, t in load_file(path).items() if n != name + lost}, path)
    with pytest.raises(ValueError, match=f"without '{name}{lost}'"):
        _open(packed)


def test_scales_of_another_shape_are_refused(tmp_path: Path) -> None:
    packed, _ = _quantised(tiny_checkpoint(ROW), tmp_path)
    path, tensors = packed / "model.safetensors", load_file(packed / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    save_file(tensors | {name: tensors[name][:, :1].clone()}, path)
    with pytest.raises(ValueError, match=r"should be U8 \[experts, rows, groups, 16\]"):
        _open(packed)
