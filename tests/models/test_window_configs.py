"""Configs of models with windows: older words for the same, and what is refused."""

from typing import Any

import pytest

from hybridrt.layers.rope import rope_by_layer_type
from hybridrt.models import gemma3_text, gemma4_text, gpt_oss, llama4_text, mimo_v2_flash

_DEFAULTS = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}


def test_settings_of_a_type_that_are_left_out_are_the_defaults() -> None:
    given = {"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": None}
    ropes = rope_by_layer_type({"rope_parameters": given}, _DEFAULTS)
    assert (ropes["full_attention"].rope_theta, ropes["full_attention"].factor) == (1e6, 2.0)
    assert (ropes["sliding_attention"].rope_theta, ropes["sliding_attention"].factor) == (1e4, None)


def test_settings_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match=r"has \['chunked_attention'\]; should have settings of"):
        rope_by_layer_type({"rope_parameters": {"chunked_attention": {}}}, _DEFAULTS)


_GEMMA: dict[str, Any] = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 2}
_PARTS = {"sliding_attention": {"partial_rotary_factor": 0.5}}
_MIMO: dict[str, Any] = {**_GEMMA, "model_type": "mimo_v2_flash", "head_dim": 12}


def test_mimos_windows_counted_the_tokens_before() -> None:
    config = mimo_v2_flash.Config.from_json({**_MIMO, "sliding_window_size": 128})
    assert config.sliding_window == 129
    assert config.layer_types == ["full_attention", "sliding_attention"]
    assert config.mlp_layer_types == ["dense", "sparse"]


def test_gpt_oss_without_rotary_settings_has_the_published_ones() -> None:
    config = gpt_oss.Config.from_json({"model_type": "gpt_oss", **_GEMMA})
    rope = config.rope_parameters
    assert (rope.rope_type, rope.rope_theta, rope.factor) == ("yarn", 150_000.0, 32.0)
    assert (rope.original_max_position_embeddings, rope.truncate) == (4096, False)


def test_gemma4s_last_layer_sees_all_tokens() -> None:
    types = ["sliding_attention", "sliding_attention"]
    config = gemma4_text.Config.from_json(
        {"model_type": "gemma4_text", **_GEMMA, "layer_types": types}
    )
    assert config.layer_list == ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        (gemma3_text, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        (gemma3_text, {"rope_parameters": _PARTS}, "not defined for Gemma 3"),
        (gemma3_text, {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        (gemma4_text, {"rope_parameters": _PARTS}, "should be of the rope_type 'proportional'"),
        (gemma4_text, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all'"),
        (gemma4_text, {"vocab_size_per_layer_input": 8}, "should be at least vocab_size=9"),
        (llama4_text, {"no_rope_layers": [1]}, "no_rope_layers has 1 entries"),
        (llama4_text, {"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        (
            mimo_v2_flash,
            {"head_dim": 12, "swa_head_dim": 6},
            "swa_head_dim=6 should be head_dim=12",
        ),
        (mimo_v2_flash, {"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        (mimo_v2_flash, {"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias"),
    ],
    ids=str,
)
def test_what_would_change_the_result_is_refused(model: Any, keys: Any, message: str) -> None:
    name = model.__name__.rpartition(".")[2]
    with pytest.raises(ValueError, match=message):
        model.Config.from_json({"model_type": name, **_GEMMA, **keys})


def test_gemma_refuses_a_list_of_layers_of_another_length() -> None:
    config = gemma3_text.Config.from_json(
        {"model_type": "gemma3_text", **_GEMMA, "layer_types": ["full_attention"]}
    )
    with pytest.raises(ValueError, match="layer_types has 1 entries; should have"):
        config.types(period=6)


def test_gemma4_needs_a_cache_to_share() -> None:
    config = gemma4_text.Config.from_json(
        {"model_type": "gemma4_text", **_GEMMA, "num_kv_shared_layers": 1}
    )
    with pytest.raises(ValueError, match="leaves no layer of 'full_attention'"):
        config.shared_by(1)
