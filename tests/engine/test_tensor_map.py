"""What a tensor is said to become is what it becomes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hybridrt.config import EngineConfig
from hybridrt.engine.loading import draw_up
from hybridrt.engine.quantised import read_quantisation
from hybridrt.engine.tensor_map import part_text, tensor_map
from hybridrt.engine.weights import load_weights
from tests.oracle import TINY, tiny_checkpoint

BY_MODEL = {row.model_type: row.name for row in reversed(TINY)}
STACKED, TIED = "deepseek_v3-stacked-experts", "llama-tied-embeddings"


@pytest.mark.parametrize("index", [0, (1, slice(2, 5)), (slice(None), slice(0, 2)), slice(0, 3)])
def test_a_part_is_written_as_it_would_be_indexed(index: Any) -> None:
    whole = torch.arange(3 * 6 * 4).view(3, 6, 4)
    view = whole[index]
    text = part_text(view, whole)
    assert torch.equal(eval(f"whole{text}"), view)
    assert bool(text) == (view.shape != whole.shape)


@pytest.mark.parametrize(
    "row", [BY_MODEL[name] for name in ("jamba", "deepseek_v3", "llama")] + [STACKED, TIED]
)
def test_the_place_holds_the_tensor_once_it_is_loaded(row: str) -> None:
    path = tiny_checkpoint(row)
    blueprint = draw_up(EngineConfig(model=str(path), dtype="float32", cache_memory=2**22))
    found = tensor_map(blueprint.model, path)
    assert found.fits
    load_weights(blueprint.model, path, device=torch.device("cpu"))
    places: dict[str, Tensor] = dict(blueprint.model.named_parameters(remove_duplicate=False))
    places |= dict(blueprint.model.named_buffers())
    stored = load_file(path / "model.safetensors")
    assert {tensor.name for tensor in found.tensors} == stored.keys()
    for tensor in found.tensors:
        assert tensor.becomes is not None
        name, bracket, index = tensor.becomes.partition("[")
        place = places[name]
        part = eval(f"place{bracket}{index}") if bracket else place
        assert torch.equal(part, stored[tensor.name].to(part.dtype)), tensor


def test_scales_decode_others_and_what_has_no_place_is_told_apart(tmp_path: Path) -> None:
    stored = {
        "m.weight": torch.ones(4, 4).to(torch.float8_e4m3fn),
        "m.weight_scale_inv": torch.ones(1),
        "m.more": torch.ones(1),
        "visual.weight": torch.ones(1),
    }
    save_file(stored, tmp_path / "model.safetensors")
    with torch.device("meta"):
        model: Any = nn.ModuleDict({"m": nn.Linear(4, 4, bias=False)})
    fp8 = read_quantisation({"quantization_config": {"quant_method": "fp8"}})
    found = tensor_map(model, tmp_path, fp8)
    assert {tensor.name: (tensor.use, tensor.becomes) for tensor in found.tensors} == {
        "m.weight": ("weight", "m.weight"),
        "m.weight_scale_inv": ("encoding", None),
        "m.more": ("unexpected", None),
        "visual.weight": ("ignored", None),
    }
    assert not found.fits and found.problems["unexpected"] == ["m.more"]
