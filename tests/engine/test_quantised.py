"""Quantised weights become what their numbers stand for; other methods are refused by name."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hybridrt import LLM, SamplingParams
from hybridrt.engine import mxfp4, quantised
from hybridrt.engine.quantised import read_quantisation
from hybridrt.engine.weights import load_weights
from tests.oracle import tiny_checkpoint

CPU = torch.device("cpu")
DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
        }
    },
}
Plain = Callable[[Tensor, Tensor], Tensor]


def multiplied(weight: Tensor, scale: Tensor, block: tuple[int, int]) -> Tensor:
    """The definition, number by number; `scale` is the grid of each matrix."""
    out = torch.empty(weight.shape)
    matrices = weight.float().view(-1, *weight.shape[-2:])
    grids = scale.float().reshape(len(matrices), -(-weight.shape[-2] // block[0]), -1)
    for m, matrix in enumerate(matrices):
        for r in range(matrix.shape[0]):
            for c in range(matrix.shape[1]):
                by = grids[m, r // block[0], c // block[1]]
                out.view(matrices.shape)[m, r, c] = matrix[r, c] * by
    return out


def load(folder: Path, stored: dict[str, Tensor], shape: tuple[int, ...], config: Any) -> Tensor:
    """Parameter `weight` of a module `m`, in float32."""
    save_file(stored, folder / "model.safetensors")
    with torch.device("meta"):
        model: Any = nn.ModuleDict({"m": nn.Module()})
        model["m"].weight = nn.Parameter(torch.empty(shape))
    quantisation = read_quantisation({"quantization_config": config})
    load_weights(model, folder, device=CPU, quantisation=quantisation)
    return model["m"].weight


def fp8(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    return torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu])
@pytest.mark.parametrize("at_once", [1, 50, 2**22])
@pytest.mark.parametrize(
    ("shape", "block"),
    [((6, 8), (2, 4)), ((7, 9), (2, 4)), ((3, 5, 7), (2, 3)), ((4, 5), (8, 8)), ((9, 4), (4, 4))],
)
def test_every_block_is_multiplied_by_its_own_scale(
    shape: tuple[int, ...],
    block: tuple[int, int],
    at_once: int,
    scale_dtype: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantised, "_DECODED_AT_ONCE", at_once)
    grid = (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))
    scale = (torch.rand(grid) + 0.01).to(scale_dtype)
    weight = fp8(*shape)
    stored = {"m.weight": weight, "m.weight_scale_inv": scale}
    loaded = load(tmp_path, stored, shape, {**DEEPSEEK, "weight_block_size": list(block)})
    assert torch.equal(loaded, multiplied(weight, scale, block))


@pytest.mark.parametrize("config", [DEEPSEEK, COMPRESSED], ids=["fp8", "compressed-tensors"])
@pytest.mark.parametrize("name", ["m.weight_scale", "m.weight_scale_inv", "m.scale"])
@pytest.mark.parametrize("shape", [(), (1,), (6, 1), (6,)], ids=str)
def test_a_scale_may_be_of_a_row_or_of_the_tensor(
    shape: tuple[int, ...], name: str, config: Any, tmp_path: Path
) -> None:
    weight, scale = fp8(6, 5), torch.rand(shape) + 0.5
    stored = {"m.weight": weight, name: scale, "m.input_scale": torch.ones(1)}
    block = (1, 5) if math.prod(shape) > 1 else (6, 5)
    expected = multiplied(weight, scale, block)
    assert torch.equal(load(tmp_path, stored, (6, 5), config), expected)


def test_scales_may_be_bytes_of_exponents(tmp_path: Path) -> None:
    weight, scale = fp8(6, 8), (torch.rand(6, 2) + 0.01).to(torch.float8_e8m0fnu)
    stored = {"m.weight": weight, "m.weight_scale": scale.view(torch.uint8)}
    loaded = load(tmp_path, stored, (6, 8), {**DEEPSEEK, "weight_block_size": [1, 4]})
    assert torch.equal(loaded, multiplied(weight, scale, (1, 4)))


def test_blocks_of_compressed_tensors_are_those_of_their_group(tmp_path: Path) -> None:
    group = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [2, 4]}
    config = {**COMPRESSED, "config_groups": {"group_0": {"weights": group}}}
    weight, scale = fp8(6, 8), torch.rand(3, 2)
    loaded = load(tmp_path, {"m.weight": weight, "m.weight_scale": scale}, (6, 8), config)
    assert torch.equal(loaded, multiplied(weight, scale, (2, 4)))


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.ones(2, 2), r"m.weight_scale_inv' is F32 \[2, 2\], .*each block of 2 x 4"),
        (torch.ones(2, 3), "is no scale"),
        (torch.ones(6, dtype=torch.int32), "is I32"),
    ],
)
def test_scales_of_another_shape_are_refused(scale: Tensor, message: str, tmp_path: Path) -> None:
    stored = {"m.weight": fp8(6, 8), "m.weight_scale_inv": scale}
    with pytest.raises(ValueError, match=message):
        load(tmp_path, stored, (6, 8), {**DEEPSEEK, "weight_block_size": [2, 4]})


def test_a_weight_without_its_scale_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"m.weight is F8_E4M3, should be one of F32"):
        load(tmp_path, {"m.weight": fp8(6, 8)}, (6, 8), DEEPSEEK)


def test_a_scale_that_scales_nothing_is_refused(tmp_path: Path) -> None:
    stored = {"m.weight": torch.ones(6, 8), "m.weight_scale_inv": torch.ones(1)}
    with pytest.raises(ValueError, match=r"unexpected \(1\):\n    m.weight_scale_inv"):
        load(tmp_path, stored, (6, 8), DEEPSEEK)


def _with_weights(**changes: Any) -> dict[str, Any]:
    weights = COMPRESSED["config_groups"]["group_0"]["weights"] | changes
    return {**COMPRESSED, "config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("fp8", "quantization_config='fp8' should be an object"),
        ({}, "quant_method=None should be one of compressed-tensors, fp8"),
        ({"quant_method": "gptq", "bits": 4}, "quant_method='gptq' should be one of"),
        ({**DEEPSEEK, "fmt": "e5m2"}, "fmt='e5m2' should be 'e4m3'"),
        ({**DEEPSEEK, "expert_dtype": "int4"}, "expert_dtype='int4' should be 'fp8' or 'fp4'"),
        ({**DEEPSEEK, "weight_block_size": [128]}, r"weight_block_size=\[128\] should be two"),
        ({**DEEPSEEK, "weight_block_size": [128, 0]}, r"weight_block_size=\[128, 0\]"),
        ({**COMPRESSED, "format": "pack-quantized"}, "format='pack-quantized' should be one of"),
        ({**COMPRESSED, "sparsity_config": {"format": "bitmask"}}, "sparsity_config.format"),
        (_with_weights(num_bits=4), "group_0.weights.num_bits=4 should be 8"),
        (_with_weights(type="int"), "group_0.weights.type='int' should be 'float'"),
        (_with_weights(symmetric=False), "group_0.weights.symmetric=False should be True"),
        (_with_weights(strategy="group"), "group_0.weights.strategy='group'"),
    ],
)
def test_what_is_not_decoded_is_refused_by_name(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_quantisation({"quantization_config": config})


def test_a_config_that_quantises_nothing_is_none() -> None:
    assert read_quantisation({}) is None
    assert read_quantisation({"quantization_config": None}) is None


@pytest.mark.parametrize("scale_dtype", [torch.uint8, torch.float8_e8m0fnu])
@pytest.mark.parametrize("at_once", [1, 100, 2**21])
def test_packed_fp4_has_a_power_of_two_for_32_numbers(
    at_once: int, scale_dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mxfp4, "_DECODED_AT_ONCE", at_once)
    draw = torch.Generator().manual_seed(0)
    packed = torch.randint(256, (5, 32), dtype=torch.uint8, generator=draw)
    powers = torch.randint(100, 150, (5, 2), dtype=torch.uint8, generator=draw)
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    expected = torch.empty(5, 64)
    for row in range(5):
        for column in range(64):
            code = int(packed[row, column // 2]) >> (4 * (column % 2)) & 15
            sign = -1 if code >= 8 else 1
            power = 2.0 ** (int(powers[row, column // 32]) - 127)
            expected[row, column] = sign * magnitudes[code % 8] * power
    stored = {"m.weight": packed.view(torch.int8), "m.scale": powers.view(scale_dtype)}
    config = {**DEEPSEEK, "weight_block_size": [128, 128], "expert_dtype": "fp4"}
    assert torch.equal(load(tmp_path, stored, (5, 64), config), expected)


@pytest.mark.parametrize("shape", [(5, 1), (5, 4), (2,)], ids=str)
def test_packed_fp4_with_other_scales_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    scale = torch.zeros(shape, dtype=torch.uint8)
    stored = {"m.weight": torch.zeros(5, 32, dtype=torch.int8), "m.scale": scale}
    with pytest.raises(ValueError, match=r"m.weight' is I8 \[5, 32\] and 'm.scale' U8"):
        load(tmp_path, stored, (5, 64), DEEPSEEK)


@pytest.mark.parametrize("layout", ["plain", "stacked", "as released"])
def test_a_model_of_fp8_blocks_answers_as_with_the_weights_they_stand_for(
    layout: str, tmp_path: Path
) -> None:
    names = {
        "plain": "deepseek_v3-grouped-routing",
        "stacked": "deepseek_v3-stacked-experts",
        "as released": "deepseek_v4-as-released",
    }
    source = tiny_checkpoint(names[layout])
    config = json.loads((source / "config.json").read_text())
    coded, plain = {}, {}
    for key, tensor in load_file(source / "model.safetensors").items():
        coded[key] = plain[key] = tensor
        aside = (".gate.", ".ape", ".hc_", "weights_proj")  # what no checkpoint has in FP8
        if tensor.dim() > 1 and "layers" in key and not any(part in key for part in aside):
            rows, columns = (-(-n // 16) for n in tensor.shape[-2:])
            scale = torch.rand(*tensor.shape[:-2], rows, columns) + 0.5
            coded[key] = tensor.to(torch.float8_e4m3fn)
            released = key.replace(".weight", ".scale")
            coded[released if layout == "as released" else f"{key}_scale_inv"] = scale
            plain[key] = multiplied(coded[key], scale, (16, 16))
    answers = []
    for folder, tensors, more in (
        (tmp_path / "plain", plain, {}),
        (tmp_path / "fp8", coded, {**DEEPSEEK, "weight_block_size": [16, 16]}),
    ):
        folder.mkdir()
        whole = {**config, "quantization_config": more} if more else config
        (folder / "config.json").write_text(json.dumps(whole))
        save_file(tensors, folder / "model.safetensors")
        llm = LLM(str(folder), cache_memory="4MiB", device="cpu")
        greedy = SamplingParams(temperature=0, max_tokens=6, logprobs=0)
        answers.append(llm.generate(list(range(20)), greedy)[0].outputs[0])
    assert answers[0] == answers[1]
