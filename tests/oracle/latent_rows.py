"""Rows of MiniCPM3, GLM-4.7-Flash, Youtu, Mistral Small 4, LongCat-Flash and A.X-K1."""

from typing import Any

from tests.oracle.rows import SIZES, rope, row, rows

_SHORT_WAVES = rope("default", rope_theta=300.0)
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
_MSCALES = {**_YARN, "mscale": 2.0, "mscale_all_dim": 0.5}
_LONGROPE = rope(
    "longrope",
    factor=4.0,
    short_factor=[1.0 + 0.25 * i for i in range(4)],
    long_factor=[2.0 + 1.5 * i for i in range(4)],
    original_max_position_embeddings=16,
)

LATENT: dict[str, Any] = {
    **SIZES,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
ODD_LATENT: dict[str, Any] = {
    "q_lora_rank": 11,
    "kv_lora_rank": 13,
    "qk_nope_head_dim": 7,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
}
EXPERTS: dict[str, Any] = {
    "intermediate_size": 72,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
}

MINICPM3 = rows(
    "minicpm3",
    {
        **LATENT,
        "intermediate_size": 72,
        "scale_emb": 2,
        "scale_depth": 1.4,
        "dim_model_base": 32,
    },
    row("tied embeddings"),
    row("not tied", tie_word_embeddings=False),
    row("full rank queries", q_lora_rank=None),
    row("scales of null", scale_emb=1, scale_depth=None, dim_model_base=None),
    row("other scales", scale_emb=0.7, scale_depth=2.5, dim_model_base=24),
    row("values as wide as hidden size allows", v_head_dim=None),
    row("biases", attention_bias=True, mlp_bias=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("longrope long", rope_parameters=_LONGROPE, prompt_lengths=(17, 18, 25, 41)),
    row("odd sizes", **ODD_LATENT),
    row("legacy config", layout="legacy", rope_parameters=_YARN, v_head_dim=None),
)

GLM4_MOE_LITE = rows(
    "glm4_moe_lite",
    {**LATENT, **EXPERTS, "n_shared_experts": 1},
    row("one dense layer"),
    row("listed layers", mlp_layer_types=["sparse", "dense", "sparse"]),
    row("every layer of experts tied", mlp_layer_types=["sparse"] * 3, tie_word_embeddings=True),
    row("full rank queries", q_lora_rank=None),
    row("half split rope", rope_interleave=False),
    row("grouped routing", n_group=4, topk_group=2),
    row("weights not normalised", norm_topk_prob=False, routed_scaling_factor=1.0),
    row("two shared experts", n_shared_experts=2),
    row("biases", attention_bias=True),
    row("large eps", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("yarn", rope_parameters=_MSCALES),
    row("odd sizes", **ODD_LATENT),
    row("stacked experts", layout="stacked"),
    row("multi token prediction", layout="extra layer"),
    row("legacy config", layout="legacy"),
)

YOUTU = rows(
    "youtu",
    {**LATENT, "intermediate_size": 72},
    row("tied embeddings"),
    row("not tied", tie_word_embeddings=False),
    row("full rank queries", q_lora_rank=None),
    row("half split rope", rope_interleave=False),
    row("biases", attention_bias=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("yarn", rope_parameters=_MSCALES),
    row("odd sizes", **ODD_LATENT),
)


def _mistral(beta: float, length: int, **numbers: Any) -> dict[str, Any]:
    return rope(
        "yarn",
        factor=8.0,
        original_max_position_embeddings=length,
        mscale=1.0,
        mscale_all_dim=1.0,
        llama_4_scaling_beta=beta,
        **numbers,
    )


MISTRAL4 = rows(
    "mistral4",
    {
        **LATENT,
        **EXPERTS,
        "n_shared_experts": 1,
        "rope_parameters": _mistral(0.5, 16),
    },
    row("queries grow every sixteen tokens"),
    row("queries grow at each token", rope_parameters=_mistral(0.3, 1, beta_fast=8.0)),
    row("queries do not grow", rope_parameters=_mistral(0.0, 64)),
    row("unlike mscales", rope_parameters={**_mistral(0.5, 16), "mscale": 2.0}),
    row("full rank queries", q_lora_rank=None),
    row("half split rope", rope_interleave=False),
    row("one dense layer", first_k_dense_replace=1),
    row("grouped routing", n_group=4, topk_group=2, routed_scaling_factor=2.5),
    row("weights not normalised", norm_topk_prob=False),
    row("biases two shared experts", attention_bias=True, n_shared_experts=2),
    row("large eps tied", rms_norm_eps=0.5, tie_word_embeddings=True),
    row("odd sizes", **ODD_LATENT),
)

LONGCAT_FLASH = rows(
    "longcat_flash",
    {
        **{key: LATENT[key] for key in LATENT if key != "num_hidden_layers"},
        "num_layers": 2,
        "head_dim": 8,
        "ffn_hidden_size": 72,
        "expert_ffn_hidden_size": 24,
        "n_routed_experts": 6,
        "zero_expert_num": 3,
        "moe_topk": 3,
        "routed_scaling_factor": 2.0,
    },
    row("three experts that cost nothing"),
    row("most experts cost nothing", n_routed_experts=3, zero_expert_num=9, moe_topk=4),
    row("no expert costs nothing", zero_expert_num=0),
    row("three layers", num_layers=3, routed_scaling_factor=1.0),
    row("one layer tied", num_layers=1, tie_word_embeddings=True),
    row("biases", attention_bias=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("yarn", rope_parameters=_MSCALES),
    row("odd sizes", **ODD_LATENT, head_dim=6),
    row("legacy config", layout="legacy"),
)

AXK1 = rows(
    "axk1",
    {**LATENT, **EXPERTS, "n_shared_experts": 1, "n_group": 4, "topk_group": 2},
    row("one dense layer"),
    row("listed layers", mlp_layer_types=["sparse", "dense", "sparse"]),
    row("one group of experts", n_group=1, topk_group=1),
    row("half split rope", rope_interleave=False),
    row("weights not normalised", norm_topk_prob=False, routed_scaling_factor=1.0),
    row("two shared experts biases", n_shared_experts=2, attention_bias=True),
    row("large eps tied", rms_norm_eps=0.5, tie_word_embeddings=True),
    row("yarn", rope_parameters=_MSCALES),
    row("odd sizes", **ODD_LATENT),
    row("legacy config", layout="legacy"),
    row("as released", layout="A.X-K1"),
)
