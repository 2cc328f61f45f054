"""Rows of Gemma, Gemma 2, VaultGemma, Gemma 3, Gemma 4 and its unified kin."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_SHORT_WAVES = rope("default", rope_theta=300.0)
_FULL, _WINDOW = "full_attention", "sliding_attention"

# Windows shorter than the longest prompts, so that tokens leave them.
_GEMMA: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "num_hidden_layers": 4,
    "head_dim": 12,
    "query_pre_attn_scalar": 12,
    "sliding_window": 9,
}
_ODD: dict[str, Any] = {
    "hidden_size": 40,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 14,
    "intermediate_size": 51,
    "num_hidden_layers": 3,
    "sliding_window": 7,
}

GEMMA2 = rows(
    "gemma2",
    {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
    row("windows in every second layer"),
    row("layers in another order", layer_types=[_FULL, _FULL, _WINDOW, _FULL]),
    row("windows alone", layer_types=[_WINDOW] * 4, sliding_window=20),
    row("no soft caps", attn_logit_softcapping=None, final_logit_softcapping=None),
    row("untied with biases", tie_word_embeddings=False, attention_bias=True),
    row(
        "large eps and base and scale",
        rms_norm_eps=0.5,
        rope_parameters=_SHORT_WAVES,
        query_pre_attn_scalar=3,
    ),
    row("odd sizes", **_ODD),
    row("legacy config", layout="legacy", rope_parameters=rope("linear", factor=3.0)),
)

_GEMMA1: dict[str, Any] = {**SIZES, **ATTENTION, "head_dim": 12}

GEMMA = rows(
    "gemma",
    _GEMMA1,
    row("grouped heads"),
    row("one key head untied", num_key_value_heads=1, tie_word_embeddings=False),
    row(
        "biases large eps and base",
        attention_bias=True,
        rms_norm_eps=0.5,
        rope_parameters=_SHORT_WAVES,
    ),
    row("odd sizes", **{k: v for k, v in _ODD.items() if k != "sliding_window"}),
    row("legacy config", layout="legacy", rope_parameters=rope("linear", factor=3.0)),
)

VAULTGEMMA = rows(
    "vaultgemma",
    {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
    row("windows in every second layer"),
    row("layers in another order", layer_types=[_FULL, _FULL, _WINDOW, _FULL]),
    row(
        "no soft caps untied",
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        tie_word_embeddings=False,
    ),
    row(
        "biases large eps and scale",
        attention_bias=True,
        rms_norm_eps=0.5,
        query_pre_attn_scalar=3,
    ),
    row("odd sizes", **_ODD),
    row("legacy config", layout="legacy", rope_parameters=rope("linear", factor=3.0)),
)

_UNLIKE_BASES = {_FULL: rope("default", rope_theta=500.0), _WINDOW: rope("linear", factor=2.0)}

GEMMA3 = rows(
    "gemma3_text",
    {**_GEMMA, "sliding_window_pattern": 3},
    row("two windows to one without"),
    row("layers in another order", layer_types=[_FULL, _WINDOW, _FULL, _WINDOW]),
    row("windows alone", layer_types=[_WINDOW] * 4, sliding_window=20),
    row("soft cap", final_logit_softcapping=8.0),
    row("untied with biases", tie_word_embeddings=False, attention_bias=True),
    row(
        "large eps and unlike bases and scale",
        rms_norm_eps=0.5,
        rope_parameters=_UNLIKE_BASES,
        query_pre_attn_scalar=3,
    ),
    row("odd sizes", **_ODD),
    row(
        "legacy config",
        layout="legacy",
        rope_parameters={_FULL: rope("linear", factor=3.0, rope_theta=1e6), _WINDOW: _SHORT_WAVES},
    ),
    row("within a multimodal checkpoint", layout="multimodal"),
)

_GEMMA4: dict[str, Any] = {
    **{key: value for key, value in _GEMMA.items() if key != "query_pre_attn_scalar"},
    "num_hidden_layers": 5,
    "layer_types": [_WINDOW, _FULL, _WINDOW, _WINDOW, _FULL],
    "global_head_dim": 20,
    "vocab_size_per_layer_input": 131,
    "hidden_size_per_layer_input": 8,
}
_EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 3,
    "moe_intermediate_size": 24,
}


def _turning(part: float, **others: float) -> dict[str, Any]:
    """Rotary settings of either type: how many of the pairs turn in layers without a window."""
    full = rope("proportional", partial_rotary_factor=part, **others)
    return {_FULL: full, _WINDOW: rope("default", rope_theta=300.0)}


GEMMA4 = rows(
    "gemma4_text",
    _GEMMA4,
    row("embeddings for each layer"),
    row("caches shared", num_kv_shared_layers=2),
    row("caches shared wide MLPs", num_kv_shared_layers=3, use_double_wide_mlp=True),
    row("values from keys", attention_k_eq_v=True, num_global_key_value_heads=1),
    row("values from keys in shared caches", attention_k_eq_v=True, num_kv_shared_layers=2),
    row("experts beside MLPs", **_EXPERTS, hidden_size_per_layer_input=0),
    row("experts and embeddings for each layer", **_EXPERTS, num_kv_shared_layers=2),
    row("soft cap untied", final_logit_softcapping=8.0, tie_word_embeddings=False),
    row("all pairs turn biases", rope_parameters=_turning(1.0), attention_bias=True),
    row("few pairs turn slowly", rope_parameters=_turning(0.4, factor=3.0), rms_norm_eps=0.1),
    row("layers as published", layer_types=None, num_hidden_layers=7),
    row(
        "odd sizes",
        **{**_ODD, "num_hidden_layers": 5},
        **_EXPERTS,
        global_head_dim=22,
        hidden_size_per_layer_input=7,
    ),
    row(
        "published config",
        layout="legacy",
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        use_bidirectional_attention="vision",
    ),
    row("within a multimodal checkpoint", layout="multimodal", **_EXPERTS, num_kv_shared_layers=2),
)

_UNIFIED: dict[str, Any] = {k: v for k, v in _GEMMA4.items() if "per_layer_input" not in k}

GEMMA4_UNIFIED_TEXT = rows(
    "gemma4_unified_text",
    _UNIFIED,
    row("two heads of two sizes"),
    row("values from keys", attention_k_eq_v=True, num_global_key_value_heads=1),
    row("caches shared wide MLPs", num_kv_shared_layers=2, use_double_wide_mlp=True),
    row("soft cap untied", final_logit_softcapping=8.0, tie_word_embeddings=False),
    row("few pairs turn slowly", rope_parameters=_turning(0.4, factor=3.0), attention_bias=True),
    row("layers as published", layer_types=None, num_hidden_layers=7, rms_norm_eps=0.1),
    row("odd sizes", **{**_ODD, "num_hidden_layers": 5}, global_head_dim=22),
)

GEMMA4_UNIFIED = rows(
    "gemma4_unified",
    {**_UNIFIED, "pad_token_id": 0},
    row("beside images and sounds"),
    row("untied values from keys", tie_word_embeddings=False, attention_k_eq_v=True),
    row("caches shared", num_kv_shared_layers=2),
    row("odd sizes", **{**_ODD, "num_hidden_layers": 5}, global_head_dim=22),
)
