"""Rows of Qwen4-Exp: residual streams, embeddings of n-grams, blocks that an indexer selects."""

from typing import Any

from tests.oracle.qwen_linear_rows import DELTA_NET, MOE, MROPE, ODD
from tests.oracle.rows import rope, row, rows

# With few heads many scores are exactly zero, and the oracle picks any of them.
_INDEXER: dict[str, Any] = {
    "indexer_n_heads": 24,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 12,
    "indexer_compress_ratio": 4,
}
_NGRAMS: dict[str, Any] = {
    "ple_layer_ids": [1],
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 40,
    "make_ngram_vocab_size_divisible_by": 8,
    "split_ngram_parts": 3,
    "eos_token_id": 7,
}
_LINEAR, _INDEXED = "linear_attention", "indexed_attention"
_ODD_NGRAMS = {"ngram_size": 4, "heads_per_ngram": 3, "ple_embed_dim": 27, "split_ngram_parts": 13}

QWEN4_EXP = rows(
    "qwen4_exp_text",
    {
        **DELTA_NET,
        **MOE,
        **_INDEXER,
        **_NGRAMS,
        "layer_types": [_LINEAR, _INDEXED, _LINEAR],
        "hc_count": 2,
        "hc_lowrank": 12,
        "rope_parameters": rope("default", partial_rotary_factor=0.25),
    },
    row("three blocks of four tokens"),
    row("one block of three tokens", indexer_budget=3, indexer_compress_ratio=3),
    row("single tokens", indexer_budget=9, indexer_compress_ratio=1),
    row("indexer heads rotated as a whole", indexer_head_dim=4, indexer_n_heads=30),
    row("n grams in two layers", ple_layer_ids=[3, 1, 3], ple_embed_dim=24, seed=99),
    row("long n grams in a text that ends", ngram_size=5, heads_per_ngram=3, eos_token_id=[97, 5]),
    row("wide convolution", ple_conv_kernel_size=6, ngram_size=2, split_ngram_parts=1),
    row("without n grams", ple_layer_ids=None, eos_token_id=None),
    row("four streams large eps", hc_count=4, hc_lowrank=5, rms_norm_eps=0.5),
    row("sigmoid gate", output_gate_type="sigmoid", linear_num_key_heads=1),
    row(
        "attention in every second layer tied",
        num_hidden_layers=4,
        layer_types=None,
        full_attention_interval=2,
        tie_word_embeddings=True,
    ),
    row(
        "attention only with biases",
        layer_types=[_INDEXED] * 3,
        attention_bias=True,
        ple_layer_ids=None,
        indexer_budget=24,
    ),
    row("called full attention", layer_types=[_LINEAR, "full_attention", _LINEAR]),
    row("weights not normalised", norm_topk_prob=False, num_experts_per_tok=1),
    row("all of each head rotated", rope_parameters=rope("linear", factor=3.0, rope_theta=300.0)),
    row(
        "odd sizes",
        **ODD,
        **_ODD_NGRAMS,
        moe_intermediate_size=11,
        shared_expert_intermediate_size=13,
        indexer_head_dim=9,
        indexer_n_heads=21,
        indexer_budget=10,
        indexer_compress_ratio=5,
        hc_count=3,
        hc_lowrank=7,
    ),
    row("stacked experts and whole tables", layout="stacked", split_ngram_parts=1),
    row("within a multimodal checkpoint", layout="multimodal", rope_parameters=MROPE),
)
