"""Configs of attention models: older words for the same, what is left out, what is refused."""

from typing import Any

import pytest

from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.interleaved_attention import InterleavedAttention
from hybridrt.models import apertus, gpt_neox, phimoe

_SIZES: dict[str, Any] = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 2}
_LONGROPE: dict[str, Any] = {
    "type": "longrope",
    "short_factor": [1.0],
    "long_factor": [2.0],
    "original_max_position_embeddings": 16,
    "short_mscale": 1.25,
    "long_mscale": 1.25,
}


def test_apertus_without_rotary_settings_has_the_published_ones() -> None:
    config = apertus.Config.from_json({"model_type": "apertus", **_SIZES})
    assert isinstance(config, apertus.Config)
    rope = config.rope_parameters
    assert (rope.rope_type, rope.rope_theta, rope.factor) == ("llama3", 12e6, 8.0)
    assert rope.original_max_position_embeddings == 8192


def test_longrope_of_phimoe_is_multiplied_by_its_mscale() -> None:
    keys = {"model_type": "phimoe", **_SIZES, "rope_scaling": _LONGROPE}
    config = phimoe.Config.from_json(keys)
    assert isinstance(config, phimoe.Config)
    assert config.rope_parameters.attention_factor == 1.25


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({**_LONGROPE, "long_mscale": 1.5}, "long_mscale=1.5 should be short_mscale=1.25"),
        ({**_LONGROPE, "short_mscale": None, "long_mscale": None}, "should be short_mscale=None"),
        ({"type": "linear", "factor": 2.0}, "rope_type='linear' should be 'default' or 'longrope'"),
    ],
)
def test_other_rotary_settings_of_phimoe_are_refused(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        phimoe.Config.from_json({"model_type": "phimoe", **_SIZES, "rope_scaling": rope})


@pytest.mark.parametrize(
    ("keys", "theta", "part"),
    [
        ({}, 10_000.0, 0.25),
        ({"rotary_emb_base": 500, "rotary_pct": 0.5}, 500.0, 0.5),
        ({"rope_parameters": {"rope_theta": 7.0, "partial_rotary_factor": 1.0}}, 7.0, 1.0),
    ],
)
def test_rotary_settings_of_gpt_neox(keys: dict[str, Any], theta: float, part: float) -> None:
    config = gpt_neox.Config.from_json({"model_type": "gpt_neox", **_SIZES, **keys})
    assert isinstance(config, gpt_neox.Config)
    rope = config.rope_parameters
    assert (rope.rope_theta, rope.partial_rotary_factor) == (theta, part)


def test_shared_key_heads_can_not_be_interleaved() -> None:
    sizes = AttentionConfig(hidden_size=8, num_attention_heads=4, num_key_value_heads=2, head_dim=2)
    with pytest.raises(ValueError, match="should be of one size"):
        InterleavedAttention(sizes, None)
