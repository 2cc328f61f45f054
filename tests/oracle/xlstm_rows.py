"""Rows of xLSTM: matrix memories with exponential gates."""

from typing import Any

from tests.oracle.rows import SIZES, row, rows

_PLAIN: dict[str, Any] = {
    **SIZES,
    "embedding_dim": 48,
    "num_heads": 4,
    # In chunks transformers can't compute in bfloat16: it multiplies unlike dtypes there.
    "chunk_size": 256,
    "ffn_proj_factor": 1.6,
    "ffn_round_up_to_multiple_of": 16,
    "gate_soft_cap": 8.0,
    "output_logit_soft_cap": 12.0,
}

XLSTM = rows(
    "xlstm",
    _PLAIN,
    row("matrix memories"),
    row("wide keys narrow values", qk_dim_factor=1.0, v_dim_factor=0.5),
    row("one head", num_heads=1, num_hidden_layers=2),
    row("biases", use_bias=True, v_dim_factor=1.5),
    row("in chunks", chunk_size=5),
    row("gates bent early", gate_soft_cap=3.5, output_logit_soft_cap=3.0, chunk_size=16),
    row("large eps in chunks", eps=0.3, norm_eps=0.2, chunk_size=16),
    row("feed forward rounded down", ffn_proj_factor=2.667, ffn_round_up_to_multiple_of=64),
    row(
        "odd sizes",
        hidden_size=45,
        embedding_dim=45,
        num_heads=3,
        qk_dim_factor=0.4,
        v_dim_factor=1.2,
        ffn_round_up_to_multiple_of=7,
    ),
    row("published config", layout="legacy"),
)
