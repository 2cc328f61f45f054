"""What a layer declares, and how it takes its part of the pool."""

import pytest
import torch

from hybridrt.cache.spec import CacheFormat
from tests.harness.layer_rows import LAYERS, ONE_OF_EACH, LayerRow


@pytest.mark.parametrize("row", LAYERS, ids=lambda row: row.reason)
def test_binding_twice_names_the_layer_and_the_sizes(row: LayerRow) -> None:
    layer = row.make()
    layer.name = "model.layers.7.mixer"
    size = layer.cache_spec.block_bytes
    layer.bind_kv_cache(torch.zeros(3, size, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match=rf"layers\.7\.mixer is bound already: {size} bytes"):
        layer.bind_kv_cache(torch.zeros(3, size, dtype=torch.uint8))


@pytest.mark.parametrize("row", LAYERS, ids=lambda row: row.reason)
def test_rows_of_the_wrong_size_are_refused_with_both_sizes(row: LayerRow) -> None:
    layer = row.make()
    layer.name = "model.layers.7.mixer"
    size = layer.cache_spec.block_bytes
    with pytest.raises(ValueError, match=rf"layers\.7\.mixer: .* {size + 16} bytes.*take {size}"):
        layer.bind_kv_cache(torch.zeros(3, size + 16, dtype=torch.uint8))
    layer.bind_kv_cache(torch.zeros(3, size, dtype=torch.uint8))  # it is still unbound


def _declared(row: LayerRow, **choices: object) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    layer = row.make()
    layer.cache_format = CacheFormat(**choices)  # type: ignore[arg-type]
    return [(state.name, state.shape, state.dtype) for state in layer.cache_spec.states]


def test_declared_states_are_those_of_the_design() -> None:
    attention, mla, mamba1, mamba2 = ONE_OF_EACH
    f32, bf16 = torch.float32, torch.bfloat16
    assert _declared(attention, kernel_block_size=8) == [("kv", (2, 8, 12), f32)]
    assert _declared(attention, kernel_block_size=8, kv_layout="NHD") == [("kv", (8, 2, 12), f32)]
    assert _declared(mla, kernel_block_size=8) == [("c_kv", (8, 16), f32), ("k_pe", (8, 4), f32)]
    assert _declared(mamba1) == [("conv_state", (3, 20), f32), ("ssm_state", (20, 5), f32)]
    # x, B and C go through the convolution: 4 heads of 6, and 2 groups of 5, twice.
    conv_state = ("conv_state", (3, 24 + 20), f32)
    assert _declared(mamba2) == [conv_state, ("ssm_state", (4, 6, 5), f32)]
    assert _declared(mamba2, state_dtype=bf16) == [conv_state, ("ssm_state", (4, 6, 5), bf16)]
