"""Rows of DeepSeek-V3.2, GLM-5 and Mistral Large 4: attention to what an indexer selects."""

from typing import Any

from tests.oracle.latent_rows import EXPERTS, LATENT, ODD_LATENT
from tests.oracle.rows import rope, row, rows

_SHORT_WAVES = rope("default", rope_theta=300.0)
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
_MSCALES = {**_YARN, "mscale": 2.0, "mscale_all_dim": 0.5}

# With few heads many scores are exactly zero, and the oracle picks any of them.
SPARSE: dict[str, Any] = {
    **LATENT,
    **EXPERTS,
    "head_dim": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "index_topk": 12,
    "index_head_dim": 16,
    "index_n_heads": 24,
}
_ODD = {**ODD_LATENT, "head_dim": 6, "index_head_dim": 9, "index_n_heads": 21, "index_topk": 7}

DEEPSEEK_V32 = rows(
    "deepseek_v32",
    {**SPARSE, "n_group": 4, "topk_group": 2},
    row("twelve of the tokens before"),
    row("three tokens", index_topk=3),
    row("most tokens", index_topk=30),
    row("indexer heads rotated as a whole", index_head_dim=8, index_n_heads=20),
    row("listed layers", mlp_layer_types=["sparse", "dense", "sparse"]),
    row("weights not normalised", norm_topk_prob=False, routed_scaling_factor=1.0),
    row("one group two shared experts", n_group=1, topk_group=1, n_shared_experts=2),
    row("biases", attention_bias=True),
    row("large eps and base tied", rms_norm_eps=0.5, tie_word_embeddings=True),
    row("short waves", rope_parameters=_SHORT_WAVES),
    row("yarn", rope_parameters=_MSCALES),
    row("odd sizes", **_ODD),
    row("multi token prediction", layout="extra layer"),
    row("legacy config", layout="legacy", rope_parameters=_MSCALES),
)

_FOUR = {"num_hidden_layers": 4}
_ALTERNATING = ["sparse", "dense"] * 2
GLM_MOE_DSA = rows(
    "glm_moe_dsa",
    {**SPARSE, **_FOUR, "n_group": 1, "topk_group": 1, "index_topk_freq": 2},
    row("every second layer selects"),
    row("every layer selects", index_topk_freq=1),
    row("few tokens", index_topk=4),
    row("one layer selects", indexer_types=["full", "shared", "shared", "shared"]),
    row("a pattern of letters", index_topk_pattern="FSFS"),
    row("an offset", index_topk_freq=3, index_skip_topk_offset=1),
    row("grouped routing", n_group=4, topk_group=2, norm_topk_prob=False),
    row("listed layers", mlp_layer_types=_ALTERNATING),
    row("biases tied", attention_bias=True, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("odd sizes", **_ODD),
    row("multi token prediction", layout="extra layer"),
    row("legacy config", layout="legacy"),
)


_FREQUENCIES = rope("yarn", factor=8.0, original_max_position_embeddings=32, attention_factor=1.0)
MISTRAL_LARGE4 = rows(
    "mistral_large4",
    {
        **{key: SPARSE[key] for key in SPARSE if key != "q_lora_rank"},
        "num_hidden_layers": 4,
        "n_group": 1,
        "topk_group": 1,
        "no_rope_layers": [1, 0, 1, 1],
        "rope_parameters": _FREQUENCIES,
    },
    row("one layer without positions"),
    row("shared latents", kv_source_layers=[0, 1, 0, 0]),
    row(
        "shared latents and selections",
        kv_source_layers=[0, 1, 0, 0],
        indexer_types=["full", "full", "shared", "full"],
    ),
    row(
        "one cache without positions for three layers",
        no_rope_layers=[0, 0, 1, 0],
        kv_source_layers=[0, 0, 2, 0],
        indexer_types=["full", "shared", "full", "shared"],
    ),
    row("every second layer selects", index_topk_freq=2),
    row("positions everywhere", no_rope_layers=[1, 1, 1, 1]),
    row("few tokens", index_topk=4),
    row("grouped routing", n_group=4, topk_group=2, routed_scaling_factor=2.5),
    row("listed layers two shared experts", mlp_layer_types=_ALTERNATING, n_shared_experts=2),
    row("narrow soft cap", final_logit_softcapping=3.0),
    row("biases", attention_bias=True),
    row("large eps tied", rms_norm_eps=0.5, tie_word_embeddings=True),
    row("default rope", rope_parameters=_SHORT_WAVES),
    row("odd sizes", **{key: _ODD[key] for key in _ODD if key != "q_lora_rank"}),
    row("names of transformers", layout="stacked"),
)
