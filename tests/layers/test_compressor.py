"""Compressed attention: what its configs and its caches refuse."""

from dataclasses import replace

import pytest

from hybridrt.cache.spec import CacheFormat, CacheSpec, Window
from hybridrt.layers.compressed_attention import CompressedAttention, CompressedAttentionConfig
from hybridrt.layers.compressor import Compressor, CompressorConfig
from hybridrt.layers.rope import Rope, RopeConfig

SIZES = CompressedAttentionConfig(
    hidden_size=24,
    num_attention_heads=4,
    head_dim=6,
    q_lora_rank=5,
    o_groups=2,
    o_lora_rank=3,
    sliding_window=7,
    rms_norm_eps=1e-6,
)
ROPE = Rope(RopeConfig(), 4, interleaved=True)


def _compressor(rate: int, overlaps: bool) -> Compressor:
    config = CompressorConfig(
        hidden_size=24, head_dim=6, rate=rate, overlaps=overlaps, rms_norm_eps=1e-6
    )
    return Compressor(config, ROPE)


@pytest.mark.parametrize("block", [1, 4, 16])
def test_what_each_layer_keeps(block: int) -> None:
    compressor, apart = _compressor(4, overlaps=True), _compressor(8, overlaps=False)
    attention = CompressedAttention(SIZES, ROPE, compressor)
    specs: list[CacheSpec] = []
    for layer in (attention, compressor, compressor.chunk_inputs):
        layer.cache_format = CacheFormat(kernel_block_size=block)
        specs.append(layer.cache_spec)
    assert [spec.window for spec in specs] == [Window(7), None, Window(8)]
    shapes = [(block, 6), (max(1, block // 4), 6), (block, 2 * 12)]
    assert [spec.states[0].shape for spec in specs] == shapes
    assert apart.chunk_inputs.cache_spec.window == Window(8, chunked=True)
    assert apart.cache_spec.states[0].tokens_per_entry == 8


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_formats_that_they_have_not_are_refused_by_name(dtype: str) -> None:
    compressor = _compressor(4, overlaps=True)
    attention = CompressedAttention(SIZES, ROPE, compressor)
    for layer in (attention, compressor, compressor.chunk_inputs):
        layer.name = f"model.{layer.mixer}"
        layer.cache_format = replace(CacheFormat(), kv_cache_dtype=dtype)
        message = rf"model.{layer.mixer}: kv_cache_dtype='{dtype}' should be 'auto'"
        with pytest.raises(ValueError, match=message):
            _ = layer.cache_spec


def test_groups_of_heads_are_equal() -> None:
    with pytest.raises(ValueError, match="o_groups=3 should divide num_attention_heads=4"):
        SIZES.model_validate({**SIZES.model_dump(), "o_groups": 3})
