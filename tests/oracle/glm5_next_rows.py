"""Rows of GLM-5.3-Flash: linear attention and pools of tokens, between several streams."""

from typing import Any

from tests.oracle.latent_rows import EXPERTS, LATENT, ODD_LATENT
from tests.oracle.rows import row, rows

_KDA, _MLA = "linear_attention", "indexed_attention"

# With few heads many scores are exactly zero, and the oracle picks any of them.
_PLAIN: dict[str, Any] = {
    **LATENT,
    **EXPERTS,
    "qk_rope_head_dim": 0,
    "n_shared_experts": 1,
    "pad_token_id": None,
    "layer_types": [_KDA, _MLA, _KDA],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "index_topk": 12,
    "index_kpool": 4,
    "index_head_dim": 16,
    "index_n_heads": 24,
    "linear_head_dim": 10,
    "linear_num_heads": 4,
    # So that it remembers for more than a few tokens.
    "linear_lower_bound": -0.7,
    "swiglu_limit": 2.0,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
}
_ODD = {key: size for key, size in ODD_LATENT.items() if key != "qk_rope_head_dim"}

GLM5_NEXT = rows(
    "glm5_next",
    _PLAIN,
    row("attention in the middle"),
    row("attention first and last", layer_types=[_MLA, _KDA, _MLA]),
    row("no attention", layer_types=[_KDA] * 3),
    row("attention only", layer_types=[_MLA] * 3),
    row(
        "a layer takes what the one before selected",
        num_hidden_layers=4,
        layer_types=[_KDA, _MLA, _MLA, _KDA],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        indexer_types=["full", "full", "shared", "full"],
    ),
    row(
        "types that follow from the number of layers",
        num_hidden_layers=5,
        layer_types=None,
        mlp_layer_types=None,
    ),
    row("one pool of three tokens", index_topk=3, index_kpool=3),
    row("pools of one token", index_topk=5, index_kpool=1),
    row("pools of sixteen tokens", index_topk=16, index_kpool=16),
    row("unbounded decays", linear_lower_bound=None),
    row("the decays of the published model", linear_lower_bound=-5.0),
    row("two streams mixed once", hc_mult=2, hc_sinkhorn_iters=1, hc_eps=0.1),
    row("five streams mixed often", hc_mult=5, hc_sinkhorn_iters=20),
    row("narrow limit", swiglu_limit=0.3),
    row(
        "groups of experts",
        n_group=4,
        topk_group=2,
        n_shared_experts=2,
        norm_topk_prob=False,
        routed_scaling_factor=0.7,
    ),
    row("biases tied", attention_bias=True, tie_word_embeddings=True),
    row("large eps", rms_norm_eps=0.5),
    row(
        "odd sizes",
        **_ODD,
        hidden_size=45,
        num_attention_heads=3,
        num_key_value_heads=3,
        linear_num_heads=5,
        linear_head_dim=7,
        linear_conv_kernel_dim=3,
        moe_intermediate_size=11,
        index_head_dim=9,
        index_n_heads=21,
        index_topk=15,
        index_kpool=5,
    ),
    row("multi token prediction", layout="extra layer"),
    row("legacy config", layout="legacy", linear_conv_kernel_dim=3),
)
