"""Rows of Hy4: sparse attention with gates and sinks, on several streams."""

from typing import Any

from tests.oracle.latent_rows import EXPERTS, LATENT, ODD_LATENT
from tests.oracle.rows import rope, row, rows

_SHORT_WAVES = rope("default", rope_theta=300.0)
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)

# With few heads many scores are exactly zero, and the oracle picks any of them.
_BASE: dict[str, Any] = {
    **LATENT,
    **EXPERTS,
    "n_shared_experts": 1,
    "index_topk": 12,
    "index_head_dim": 16,
    "index_n_heads": 24,
    "hc_mult": 2,
    "swiglu_limit": 2.0,
    "pad_token_id": None,
}
_FOUR = {"num_hidden_layers": 4}

HY_V4 = rows(
    "hy_v4",
    {**_BASE, **_FOUR},
    row("two layers of four select"),
    row("every layer selects few tokens", indexer_types=["full"] * 4, index_topk=4),
    row("one layer selects most tokens", indexer_types=["full", *["shared"] * 3], index_topk=30),
    row("seven layers", num_hidden_layers=7),
    row("four streams and a large eps", hc_mult=4, hc_eps=0.3, hc_magnitude=1.3),
    row("one stream", hc_mult=1, hc_magnitude=0.7),
    row("narrow limit", swiglu_limit=0.3),
    row("wide limit", swiglu_limit=10.0),
    row("indexer heads rotated as a whole", index_head_dim=8, index_n_heads=28),
    row("listed layers", mlp_layer_types=["sparse", "dense"] * 2),
    row("grouped routing", n_group=4, topk_group=2, norm_topk_prob=False),
    row("two shared experts", n_shared_experts=2, routed_scaling_factor=1.0),
    row("biases tied", attention_bias=True, tie_word_embeddings=True),
    row("large eps and base", rms_norm_eps=0.5, rope_parameters=_SHORT_WAVES),
    row("yarn", rope_parameters={**_YARN, "mscale": 2.0, "mscale_all_dim": 0.5}),
    row(
        "odd sizes",
        **ODD_LATENT,
        **{"index_head_dim": 9, "index_n_heads": 21, "index_topk": 7, "hc_mult": 3},
    ),
    row("names of transformers", layout="stacked"),
)
