"""Scales of a quantised cache that a checkpoint brings with it."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hybridrt import LLM, SamplingParams
from tests.oracle.checkpoints import tiny_checkpoint

LAYER = "model.layers.0.self_attn"


def with_scales(path: Path, **scales: Tensor) -> LLM:
    """An LLM of a tiny Llama whose first layer has these scales."""
    shutil.copytree(tiny_checkpoint("llama-grouped-heads"), path)
    (weights,) = path.glob("*.safetensors")
    tensors = load_file(weights) | {f"{LAYER}.{name}": scale for name, scale in scales.items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    return LLM(str(path), cache_memory="1MiB", kv_cache_dtype="fp8_e4m3")


def scales_of(llm: LLM) -> tuple[list[float], list[float]]:
    layer = llm.engine.model.get_submodule(LAYER)
    return layer.k_scale.tolist(), layer.v_scale.tolist()  # pyright: ignore


def test_they_are_one_where_a_checkpoint_has_none(tmp_path: Path) -> None:
    k, v = scales_of(with_scales(tmp_path / "model"))
    assert set(k) == set(v) == {1.0}


def test_one_number_holds_for_all_heads_and_a_list_for_each(tmp_path: Path) -> None:
    heads = len(scales_of(with_scales(tmp_path / "plain"))[0])
    each = torch.arange(1, heads + 1, dtype=torch.bfloat16) / 4
    llm = with_scales(tmp_path / "model", k_scale=torch.tensor(0.5), v_scale=each)
    assert scales_of(llm) == ([0.5] * heads, each.tolist())
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3))


def test_the_scale_is_that_of_the_numbers_in_the_cache(tmp_path: Path) -> None:
    stored = []
    for name, scale in (("half", 0.5), ("one", 1.0)):
        llm = with_scales(tmp_path / name, k_scale=torch.tensor([scale]))
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=1))
        layer = llm.engine.model.get_submodule(LAYER)
        stored.append(layer.cached.k.float())  # pyright: ignore
    assert stored[1].any()
    # Powers of two move the exponent alone, wherever it isn't the smallest.
    normal = stored[1].abs() >= 2**-5
    assert torch.equal(stored[0][normal], 2 * stored[1][normal])


def test_another_number_of_heads_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{LAYER}.k_scale is \[7\], should be \["):
        with_scales(tmp_path / "model", k_scale=torch.ones(7))
