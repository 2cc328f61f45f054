"""Rows of Llama, Qwen3, DeepSeek-V2 and DeepSeek-V3."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_SHORT_WAVES = rope("default", rope_theta=300.0)
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
_LLAMA3 = rope(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)


def _longrope(pairs: int, original: int) -> dict[str, Any]:
    return rope(
        "longrope",
        factor=4.0,
        short_factor=[1.0 + 0.25 * i for i in range(pairs)],
        long_factor=[2.0 + 1.5 * i for i in range(pairs)],
        original_max_position_embeddings=original,
    )


_BEYOND_16 = (17, 18, 25, 41)

LLAMA = rows(
    "llama",
    {**SIZES, **ATTENTION, "head_dim": 12},
    row("grouped heads"),
    row("a head per key", num_key_value_heads=4),
    row("one key head", num_key_value_heads=1),
    row("tied embeddings", tie_word_embeddings=True),
    row("biases", attention_bias=True, mlp_bias=True),
    row("head_dim apart from hidden_size", head_dim=20),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("linear rope", rope_parameters=rope("linear", factor=3.0)),
    row("llama3 rope", rope_parameters=_LLAMA3),
    row("yarn rope", rope_parameters=_YARN),
    row(
        "yarn rope all keys",
        rope_parameters={
            **_YARN,
            "attention_factor": 1.3,
            "beta_fast": 8,
            "beta_slow": 2,
            "truncate": False,
        },
    ),
    row(
        "yarn rope whose ramp ends beyond the last pair",
        rope_parameters={**_YARN, "rope_theta": 10.0, "original_max_position_embeddings": 256},
    ),
    row("dynamic rope within its length", rope_parameters=rope("dynamic", factor=4.0)),
    row("longrope short", rope_parameters=_longrope(6, original=64)),
    row("longrope long", rope_parameters=_longrope(6, original=16), prompt_lengths=_BEYOND_16),
    row(
        "longrope crossed by the output",
        rope_parameters=_longrope(6, original=24),
        prompt_lengths=(8, 17, 23, 24, 41),
        stepwise=True,
    ),
    row("legacy config", layout="legacy", rope_parameters=rope("linear", factor=3.0)),
    row("several files", layout="sharded"),
)

QWEN3 = rows(
    "qwen3",
    {**SIZES, **ATTENTION, "head_dim": 16},
    row("grouped heads"),
    row("one key head", num_key_value_heads=1),
    row("tied embeddings", tie_word_embeddings=True),
    row("biases", attention_bias=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("linear rope", rope_parameters=rope("linear", factor=3.0)),
    row("yarn rope", rope_parameters=_YARN),
    row("dynamic rope within its length", rope_parameters=rope("dynamic", factor=4.0)),
    row("longrope long", rope_parameters=_longrope(8, original=16), prompt_lengths=_BEYOND_16),
    row("legacy config", layout="legacy", rope_parameters=_YARN),
)

_MLA: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
}
_ODD_MLA: dict[str, Any] = {
    "kv_lora_rank": 13,
    "qk_nope_head_dim": 7,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
}
# The oracle's rotation in complex numbers needs even strides.
_EVEN_MLA: dict[str, Any] = {
    "kv_lora_rank": 14,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
}

DEEPSEEK_V2 = rows(
    "deepseek_v2",
    {**_MLA, "q_lora_rank": None, "n_shared_experts": 2},
    row("greedy routing"),
    row("low rank queries", q_lora_rank=20),
    row(
        "grouped routing",
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
    ),
    row("yarn with mscale", rope_parameters={**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7}),
    row("yarn unlike mscales", rope_parameters={**_YARN, "mscale": 2.0, "mscale_all_dim": 0.5}),
    row("yarn mscale alone", rope_parameters={**_YARN, "mscale": 2.0}),
    row("biases", attention_bias=True, mlp_bias=True, q_lora_rank=20),
    row("large eps", rms_norm_eps=0.5, q_lora_rank=20),
    row("every layer of experts tied", first_k_dense_replace=0, tie_word_embeddings=True),
    row("no layer of experts", first_k_dense_replace=3),
    row("odd sizes one shared expert", **_EVEN_MLA, n_shared_experts=1),
    row("stacked experts", layout="stacked"),
    row(
        "legacy config",
        layout="legacy",
        rope_parameters={**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
    ),
)

DEEPSEEK_V3 = rows(
    "deepseek_v3",
    {**_MLA, "q_lora_rank": 20, "n_group": 4, "topk_group": 2, "n_shared_experts": 1},
    row("grouped routing"),
    row("full rank queries", q_lora_rank=None),
    row("half split rope", rope_interleave=False),
    row("weights not normalised", norm_topk_prob=False, routed_scaling_factor=1.0),
    row("one group two shared experts", n_group=1, topk_group=1, n_shared_experts=2),
    row("one group of two", n_group=2, topk_group=1),
    row("yarn unlike mscales", rope_parameters={**_YARN, "mscale": 2.0, "mscale_all_dim": 0.5}),
    row("biases", attention_bias=True),
    row("large eps tied", rms_norm_eps=0.5, tie_word_embeddings=True),
    row("odd sizes", **_ODD_MLA),
    row("stacked experts", layout="stacked"),
    row("multi token prediction", layout="extra layer"),
    row(
        "legacy config",
        layout="legacy",
        rope_parameters={**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
)
