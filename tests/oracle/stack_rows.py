"""Rows of our own `hybrid_stack`."""

from typing import Any

from tests.oracle.rows import SIZES, rope, row, rows

_ATTENTION: dict[str, Any] = {
    "type": "attention",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
}
_MLA: dict[str, Any] = {
    "type": "mla",
    "num_attention_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
_MAMBA1: dict[str, Any] = {
    "type": "mamba1",
    "intermediate_size": 64,
    "state_size": 8,
    "time_step_rank": 3,
}
_MAMBA2: dict[str, Any] = {
    "type": "mamba2",
    "num_heads": 8,
    "head_dim": 8,
    "state_size": 16,
    "n_groups": 2,
    "chunk_size": 8,
}
_SHORT_CONV: dict[str, Any] = {"type": "short_conv"}
_GATED_DELTA_NET: dict[str, Any] = {
    "type": "gated_delta_net",
    "num_key_heads": 2,
    "num_value_heads": 4,
    "key_head_dim": 12,
    "value_head_dim": 8,
}
_KDA: dict[str, Any] = {"type": "kda", "num_heads": 4, "head_dim": 12}
_LIGHTNING: dict[str, Any] = {"type": "lightning", "num_attention_heads": 4, "head_dim": 12}
_MLP: dict[str, Any] = {"type": "mlp", "intermediate_size": 72}
_MOE: dict[str, Any] = {
    "type": "moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
_WINDOW: dict[str, Any] = {**_ATTENTION, "sliding_window": 6}
_WIDE: dict[str, Any] = {**_ATTENTION, "sliding_window": 17}
_CHUNKS: dict[str, Any] = {**_ATTENTION, "attention_chunk_size": 7}
_HALF_ROTARY = rope("default", partial_rotary_factor=0.5)

STACK = rows(
    "hybrid_stack",
    {
        "vocab_size": SIZES["vocab_size"],
        "hidden_size": 48,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
        "layers": [_ATTENTION, _MLP, _MLA, _MOE, _MAMBA1, _MLP, _MAMBA2],
    },
    row("every mixer"),
    row("untied embeddings", tie_word_embeddings=False),
    row("large eps", rms_norm_eps=0.5),
    row("attention alone", layers=[_ATTENTION, _MLP, _ATTENTION]),
    row("latent attention alone", layers=[_MLA, _MLP, _MLA]),
    row("mamba1 alone", layers=[_MAMBA1, _MAMBA1, _MAMBA1]),
    row("mamba2 alone", layers=[_MAMBA2, _MAMBA2, _MAMBA2]),
    row(
        "attention of unlike geometries",
        layers=[
            {**_ATTENTION, "qk_norm": True, "num_key_value_heads": 1},
            _MLP,
            {**_ATTENTION, "attention_bias": True, "head_dim": 20, "rope_parameters": None},
            {**_ATTENTION, "rope_parameters": _HALF_ROTARY},
        ],
    ),
    row(
        "latent attention of unlike geometries",
        layers=[
            {**_MLA, "q_lora_rank": 20, "kv_lora_rank": 13},
            _MLP,
            {**_MLA, "rope_interleave": False, "v_head_dim": 5},
        ],
    ),
    row(
        "mamba1 of unlike geometries",
        layers=[
            {**_MAMBA1, "use_bias": True, "conv_kernel": 2},
            {**_MAMBA1, "use_conv_bias": False, "intermediate_size": 33, "state_size": 5},
        ],
    ),
    row(
        "mamba2 of unlike geometries",
        layers=[
            {**_MAMBA2, "norm_before_gate": True, "conv_kernel": 3},
            {**_MAMBA2, "use_bias": True, "time_step_limit": [0.1, 0.4], "n_groups": 1},
            {**_MAMBA2, "use_conv_bias": False, "num_heads": 3, "n_groups": 3, "state_size": 5},
        ],
    ),
    row("short convolutions", layers=[_SHORT_CONV, _SHORT_CONV, _ATTENTION, _SHORT_CONV]),
    row("gated delta net alone", layers=[_GATED_DELTA_NET, _GATED_DELTA_NET]),
    row("kimi delta attention alone", layers=[_KDA, _KDA]),
    row("lightning attention alone", layers=[_LIGHTNING, _LIGHTNING]),
    row(
        "states of unlike geometries",
        layers=[
            {**_SHORT_CONV, "conv_kernel": 7, "use_bias": True},
            {**_GATED_DELTA_NET, "num_key_heads": 1, "value_head_dim": 20, "conv_kernel": 2},
            {**_KDA, "num_heads": 3, "head_dim": 7, "conv_kernel": 3},
            {**_LIGHTNING, "num_attention_heads": 5, "head_dim": 9, "decay_scale": 0.3},
        ],
    ),
    row(
        "every state between attention",
        layers=[_ATTENTION, _SHORT_CONV, _GATED_DELTA_NET, _MLA, _KDA, _LIGHTNING, _MAMBA2],
    ),
    row("sliding windows", layers=[_WIDE, _MLP, {**_WIDE, "sliding_window": 30}]),
    row("chunked attention", layers=[_CHUNKS, _MLP, _ATTENTION, {**_CHUNKS, "softcap": 1.5}]),
    row(
        "sinks and unlike head sizes",
        layers=[
            {**_ATTENTION, "sinks": True, "head_dim_v": 20},
            _MLP,
            {**_WINDOW, "sinks": True, "head_dim_v": 5, "qk_norm": True},
        ],
    ),
    row(
        "shared caches",
        layers=[
            _ATTENTION,
            _WINDOW,
            _MLP,
            {**_WINDOW, "share_cache_of": 1, "num_attention_heads": 2},
            {**_ATTENTION, "share_cache_of": 0, "qk_norm": True},
        ],
    ),
    row(
        "mixers side by side",
        layers=[{"type": "parallel", "mixers": [_ATTENTION, _MAMBA2]}, _MLP],
    ),
    row(
        "every kind of cache",
        layers=[
            {"type": "parallel", "mixers": [{**_WINDOW, "sinks": True}, _MAMBA1]},
            _ATTENTION,
            _MLA,
            {**_CHUNKS, "head_dim_v": 8},
            {"type": "parallel", "mixers": [_MLP, {**_ATTENTION, "share_cache_of": 1}]},
        ],
    ),
    row("weights not normalised", layers=[_MAMBA2, {**_MOE, "norm_topk_prob": False}, _ATTENTION]),
)
