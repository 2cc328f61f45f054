"""What a config of MiniMax-M3 must not say."""

import json
from pathlib import Path
from typing import Any

import pytest

from hybridrt.config import EngineConfig
from hybridrt.engine.loading import draw_up
from tests.oracle import tiny_checkpoint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ({"mlp_layer_types": ["dense"] * 4}, "mlp_layer_types has 4 entries"),
        ({"rotary_dim": 4}, "rotary_dim=4 should be 8"),
        ({"index_n_heads": 3}, "index_n_heads=3 should divide num_key_value_heads=2"),
        ({"index_local_blocks": 4}, "index_local_blocks=4 should be at most index_topk_blocks=3"),
        ({"index_head_dim": 6}, "index_head_dim=6 should be at least 8"),
        ({"sparse_attention_config": {"sparse_init_block": 1}}, "sparse_init_block=1"),
        ({"sparse_attention_config": {"sparse_score_type": "lse"}}, "sparse_score_type='lse'"),
        ({"sparse_attention_config": {"sparse_surprise": 2}}, "sparse_surprise=2"),
    ],
)
def test_what_is_not_done_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = tiny_checkpoint("minimax_m3_vl_text-three-blocks-of-four-tokens")
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=message):
        draw_up(EngineConfig(model=str(tmp_path)))
