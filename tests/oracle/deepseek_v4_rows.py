"""Rows of DeepSeek-V4: attention to a window and to compressed tokens, on several streams."""

from typing import Any

from tests.oracle.rows import SIZES, rope, row, rows

_S, _H, _C = "sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"


def _rates(sparse: int, heavy: int) -> dict[str, int]:
    return {_C: sparse, _H: heavy}


# With few heads many scores are exactly zero, and the oracle picks any of them.
_BASE: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 4,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 20,
    "o_groups": 2,
    "o_lora_rank": 12,
    "sliding_window": 8,
    "layer_types": [_H, _C, _S, _C],
    "compress_rates": _rates(4, 8),
    "index_n_heads": 24,
    "index_head_dim": 16,
    "index_topk": 4,
    "num_hash_layers": 1,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 4,
    "swiglu_limit": 2.0,
}
_SHORT_WAVES = {"main": rope("default", rope_theta=300.0), "compress": rope("default")}
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32)
_HALF = {"partial_rotary_factor": 0.5}

DEEPSEEK_V4 = rows(
    "deepseek_v4",
    _BASE,
    row("every kind of layer"),
    row("few entries selected", index_topk=1),
    row("all entries selected", index_topk=40),
    row("sparse layers only", layer_types=[_C] * 4, compress_rates=_rates(2, 8)),
    row("heavy layers only", layer_types=[_H] * 4),
    row("windows only", layer_types=[_S] * 4, earliest_seen=20),
    row("as layers are by default", layer_types=None, num_hash_layers=None),
    row("chunks longer than the window", sliding_window=3, compress_rates=_rates(6, 17)),
    row("windows longer than chunks", sliding_window=21, compress_rates=_rates(2, 3)),
    row("an entry for each token", compress_rates=_rates(1, 1)),
    row("indexer heads rotated as a whole", index_head_dim=8, index_n_heads=28),
    row("listed experts", mlp_layer_types=["moe", "hash_moe", "hash_moe", "moe"]),
    row("no table of experts", num_hash_layers=0, routed_scaling_factor=1.0),
    row("four streams and a large eps", hc_mult=4, hc_eps=0.3, hc_sinkhorn_iters=20),
    row("one stream", hc_mult=1, hc_sinkhorn_iters=1),
    row("narrow limit", swiglu_limit=0.3),
    row("one group of heads tied", o_groups=1, tie_word_embeddings=True),
    row("large eps", rms_norm_eps=0.5),
    row(
        "unlike bases",
        qk_rope_head_dim=None,
        rope_theta=300.0,
        compress_rope_theta=2000.0,
        partial_rotary_factor=0.25,
    ),
    row(
        "heads rotated as a whole",
        qk_rope_head_dim=None,
        partial_rotary_factor=1.0,
        rope_parameters=_SHORT_WAVES,
    ),
    row("yarn", rope_parameters=_YARN),
    row(
        "yarn with its factor",
        rope_parameters={"main": {**rope("default"), **_HALF}, "compress": {**_YARN, **_HALF}},
    ),
    row(
        "odd sizes",
        **{"num_attention_heads": 6, "head_dim": 13, "qk_rope_head_dim": 6, "q_lora_rank": 11},
        **{"o_groups": 3, "o_lora_rank": 7, "sliding_window": 7, "hc_mult": 3},
        **{"compress_rates": _rates(3, 5), "index_head_dim": 9, "index_n_heads": 21},
        num_experts_per_tok=1,
    ),
    row("names of transformers", layout="stacked"),
    row(
        "as released",
        layout="DeepSeek-V4",
        layer_types=[_S, _C, _H, _C],
        compress_rates=_rates(4, 128),
        rope_parameters=_YARN,
        prompt_lengths=(3, 41, 140),
    ),
)
