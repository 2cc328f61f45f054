"""What xLSTM's checkpoints have beyond what the table of tiny models shows."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hybridrt import LLM, SamplingParams
from hybridrt.models.xlstm import Config, Model
from tests.oracle import tiny_checkpoint

# That of xLSTM-7b, without what has no effect in any model.
PUBLISHED: dict[str, Any] = {
    "add_embedding_dropout": False,
    "add_forward_backend_padding": False,
    "add_out_norm": True,
    "add_post_blocks_norm": True,
    "add_post_norm": False,
    "add_qk_norm": False,
    "cell_norm_eps": 1e-06,
    "embedding_dim": 4096,
    "ffn_proj_factor": 2.667,
    "ffn_round_up_to_multiple_of": 64,
    "force_bos_token_insert": True,
    "forward_backend_name": "chunkwise--triton_limit_chunk",
    "gate_soft_cap": 15.0,
    "head_dim": 512,
    "igate_bias_init_range": -10.0,
    "mlstm_round_up_to_multiple_of": 64,
    "model_type": "xlstm",
    "norm_eps": 1e-06,
    "norm_reduction_force_float32": True,
    "num_blocks": 32,
    "num_heads": 8,
    "output_logit_soft_cap": 30.0,
    "qk_dim_factor": 0.5,
    "return_last_states": True,
    "step_backend_name": "triton_fused",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_bias": False,
    "v_dim_factor": 1.0,
    "vocab_size": 50304,
}
FUSED = {
    "qkv_opreact": ("q", "k", "v", "ogate_preact"),
    "ifgate_preact": ("igate_preact", "fgate_preact"),
    "proj_up_gate_z": ("proj_up_gate", "proj_up"),
}


def test_the_published_config_says_all_sizes() -> None:
    config = Config.from_json(PUBLISHED)
    assert isinstance(config, Config)
    sizes = (config.hidden_size, config.num_hidden_layers, config.qk_dim, config.v_dim)
    assert (*sizes, config.ffn_dim) == (4096, 32, 2048, 4096, 10944)
    with torch.device("meta"):
        model = Model(config)
    assert sum(p.numel() for p in model.parameters()) == 6_865_424_896


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("hidden_size", 2048), ("num_hidden_layers", 3), ("head_dim", 256)),
        *(("cell_norm_eps", 1e-5), ("mlstm_round_up_to_multiple_of", 96)),
    ],
)
def test_keys_that_disagree_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValueError, match="should"):
        Config.from_json({**PUBLISHED, key: value})


def _fuse(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as `weight_mode="fused"` has them."""
    rest = dict(tensors)
    for fused, parts in FUSED.items():
        for name in tensors:
            if f".{parts[0]}." in name:
                names = [name.replace(f".{parts[0]}.", f".{part}.") for part in parts]
                joined = torch.cat([rest.pop(part) for part in names])
                rest[name.replace(f".{parts[0]}.", f".{fused}.")] = joined
    return rest


@pytest.mark.parametrize("row", ["xlstm-matrix-memories", "xlstm-biases"])
def test_fused_weights_give_the_same(row: str, tmp_path: Path) -> None:
    # transformers can't make such a model: giving it its first weights fails.
    source = tiny_checkpoint(row)
    fused = _fuse(load_file(source / "model.safetensors"))
    assert not any(".q." in name for name in fused)
    save_file(fused, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "weight_mode": "fused"}))
    params = SamplingParams(temperature=0, max_tokens=20)
    answers: list[list[int]] = []
    for path in (source, tmp_path):
        llm = LLM(str(path), device="cpu", dtype="float32", cache_memory="4MiB")
        answers.append(list(llm.generate([7, 119, 3, 64], params)[0].outputs[0].token_ids))
    assert answers[0] == answers[1]
