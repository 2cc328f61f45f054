"""Rows of Dots 3 Note: latent attention to all tokens, to the last few, and to selected ones."""

from typing import Any

from tests.oracle.latent_rows import EXPERTS, LATENT, ODD_LATENT
from tests.oracle.rows import rope, row, rows

_KINDS = {"i": "indexed_attention", "s": "sliding_attention", "f": "full_attention"}


def _kinds(letters: str) -> dict[str, Any]:
    """One letter a layer."""
    return {"num_hidden_layers": len(letters), "layer_types": [_KINDS[kind] for kind in letters]}


def _ropes(**settings: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": {_KINDS[kind]: value for kind, value in settings.items()}}


_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
_SLOW, _FAST = rope("default", rope_theta=50_000.0), rope("default", rope_theta=300.0)

# With few heads many scores are exactly zero, and the oracle picks any of them.
_BASE: dict[str, Any] = {
    **LATENT,
    **EXPERTS,
    "head_dim": 16,
    "n_shared_experts": 1,
    "shared_experts_intermediate_size": 20,
    "index_topk": 12,
    "index_head_dim": 16,
    "index_n_heads": 24,
    "sliding_window": 9,
    "swa_num_attention_heads": 3,
    "swa_num_key_value_heads": 3,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 18,
    "swa_head_dim": 16,
    "swa_qk_nope_head_dim": 8,
    "swa_v_head_dim": 10,
    "pad_token_id": None,
    "bos_token_id": None,
}
_ODD: dict[str, Any] = {
    **ODD_LATENT,
    "head_dim": 12,
    "index_head_dim": 9,
    "index_n_heads": 21,
    "index_topk": 7,
    "swa_num_attention_heads": 5,
    "swa_num_key_value_heads": 5,
    "swa_q_lora_rank": 9,
    "swa_kv_lora_rank": 7,
    "swa_head_dim": 8,
    "swa_qk_nope_head_dim": 4,
    "swa_v_head_dim": 3,
    "sliding_window": 5,
}
_INDEXED = {"kv_lora_rank": 9, "qk_nope_head_dim": 8, "q_lora_rank": 30, "v_head_dim": 20}
_EACH_ITS_OWN: dict[str, dict[str, int]] = {
    "0": {"num_attention_heads": 2, "num_key_value_heads": 2, "v_head_dim": 7},
    "1": _INDEXED,
    "2": {"head_dim": 20},
    "3": _INDEXED,
}

DOTS3_NOTE = rows(
    "dots3_note_text",
    {**_BASE, **_kinds("isi")},
    row("windows between indexed layers"),
    row("all tokens and windows", use_dsa=False, **_kinds("fssf")),
    row("indexed layers only", **_kinds("iii"), index_topk=4),
    row("windows only", **_kinds("sss"), sliding_window=20),
    row("all three kinds", **_kinds("fisi"), per_layer_config=_EACH_ITS_OWN),
    row("windows first", **_kinds("ssisi"), index_topk=30),
    row("kinds by default", num_hidden_layers=6, layer_types=None),
    row("listed layers", mlp_layer_types=["sparse", "dense", "sparse"]),
    row("every second layer has experts", moe_layer_freq=2, first_k_dense_replace=0),
    row("grouped routing", n_group=4, topk_group=2, routed_scaling_factor=2.5),
    row("weights not normalised", norm_topk_prob=False),
    row("two shared experts biases", n_shared_experts=2, attention_bias=True),
    row("large eps tied", rms_norm_eps=0.5, tie_word_embeddings=True),
    row("rope of each kind", **_ropes(i=_FAST, s=_SLOW), swa_qk_rope_head_dim=8),
    row("yarn", **_ropes(i={**_YARN, "mscale": 2.0, "mscale_all_dim": 0.5}, s=_FAST)),
    row("odd sizes", **_ODD),
    row("multi token prediction", layout="extra layer"),
    row("as published", layout="legacy", use_dsa=False, **_kinds("ffsssf")),
)
