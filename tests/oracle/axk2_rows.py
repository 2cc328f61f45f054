"""Rows of A.X-K2: sparse attention with gates, and norms that gate themselves."""

from typing import Any

from tests.oracle.latent_rows import EXPERTS, LATENT, ODD_LATENT
from tests.oracle.rows import rope, row, rows

_SHORT_WAVES = rope("default", rope_theta=300.0)
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
_MSCALES = {**_YARN, "mscale": 2.0, "mscale_all_dim": 0.5}

# With few heads many scores are exactly zero, and the oracle picks any of them.
_BASE: dict[str, Any] = {
    **LATENT,
    **EXPERTS,
    "n_shared_experts": 1,
    "index_topk": 12,
    "index_head_dim": 16,
    "index_n_heads": 24,
    "gated_norm_rank": 5,
}

AXK2 = rows(
    "axk2",
    _BASE,
    row("one dense layer"),
    row("few tokens", index_topk=4),
    row("most tokens and a wide gate", index_topk=30, gated_norm_rank=48),
    row("indexer heads rotated as a whole", index_head_dim=8, index_n_heads=28),
    row("listed layers", mlp_layer_types=["sparse", "dense", "sparse"]),
    row("grouped routing", n_group=4, topk_group=2),
    row("one group of experts", n_group=1, topk_group=1),
    row("weights not normalised", norm_topk_prob=False, routed_scaling_factor=1.0),
    row("two shared experts biases", n_shared_experts=2, attention_bias=True),
    row("large eps tied", rms_norm_eps=0.5, tie_word_embeddings=True),
    row("short waves", rope_parameters=_SHORT_WAVES),
    row("yarn", rope_parameters=_MSCALES),
    row(
        "odd sizes",
        **ODD_LATENT,
        **{"index_head_dim": 9, "index_n_heads": 21, "index_topk": 7, "gated_norm_rank": 3},
    ),
    row("names of transformers", layout="stacked"),
    row("multi token prediction", layout="extra layer"),
    row("legacy config", layout="legacy", rope_parameters=_MSCALES),
)
