"""Rows of MiniMax-M3: each index head selects blocks of tokens for some heads of attention."""

from typing import Any

from tests.oracle.rows import ATTENTION, SIZES, rope, row, rows

_SPARSE, _FULL = "minimax_m3_sparse", "full_attention"
_HALF = rope("default", partial_rotary_factor=0.5)

_BASE: dict[str, Any] = {
    **SIZES,
    **ATTENTION,
    "head_dim": 16,
    "intermediate_size": 24,
    "dense_intermediate_size": 56,
    "shared_intermediate_size": 40,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "swiglu_limit": 1.5,
    "layer_types": [_FULL, _SPARSE, _SPARSE],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "index_n_heads": 2,
    "index_head_dim": 12,
    "index_block_size": 4,
    "index_topk_blocks": 3,
    "rope_parameters": _HALF,
    "rotary_dim": 8,
}

MINIMAX_M3_VL_TEXT = rows(
    "minimax_m3_vl_text",
    _BASE,
    row("three blocks of four tokens"),
    row("no block for its place", index_local_blocks=0, index_topk_blocks=2),
    row("all blocks but one for their place", index_local_blocks=4, index_topk_blocks=5),
    row("single tokens", index_block_size=1, index_topk_blocks=9, index_local_blocks=3),
    row("one head selects for all", index_n_heads=1, index_block_size=7),
    row("sparse and experts everywhere", layer_types=[_SPARSE] * 3, mlp_layer_types=None),
    row("full attention everywhere", layer_types=None, mlp_layer_types=["dense"] * 3),
    row("wide gate", swiglu_alpha=0.8, swiglu_limit=7.0, routed_scaling_factor=0.7),
    row(
        "all of each head rotated",
        rope_parameters=rope("linear", factor=3.0),
        index_head_dim=20,
        rotary_dim=64,
    ),
    row("large eps tied", rms_norm_eps=0.5, tie_word_embeddings=True, num_experts_per_tok=1),
    row(
        "odd sizes",
        hidden_size=45,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=10,
        rope_parameters=rope("default", partial_rotary_factor=0.6),
        rotary_dim=6,
        index_n_heads=3,
        index_head_dim=7,
        index_block_size=5,
        num_local_experts=5,
        intermediate_size=11,
        shared_intermediate_size=13,
        dense_intermediate_size=17,
    ),
    row("legacy config", layout="legacy"),
)

# With the names of the released checkpoint.
MINIMAX_M3_VL = rows(
    "minimax_m3_vl",
    _BASE,
    row("three blocks of four tokens"),
    row("one head selects for all tied", index_n_heads=1, tie_word_embeddings=True),
    row("no indexer", layer_types=None, rms_norm_eps=0.5),
    row("names of transformers", layout="stacked", index_local_blocks=0),
)
