"""Makes tiny random checkpoints, with `transformers` in the format it saves."""

import atexit
import copy
import functools
import json
import math
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tests.oracle.rows import Tiny
from tests.oracle.table import BY_NAME
from training.dense import DenseStack

# What older config.json files of each model hold beyond today's, with the values
# of the real checkpoints. None of them changes the result.
_LEGACY_KEYS: dict[str, dict[str, Any]] = {
    "llama": {"pretraining_tp": 1},
    "qwen3": {"use_sliding_window": False, "max_window_layers": 3, "sliding_window": None},
    "deepseek_v2": {
        "scoring_func": "softmax",
        "moe_layer_freq": 1,
        "ep_size": 1,
        "aux_loss_alpha": 0.001,
        "seq_aux": True,
    },
    "deepseek_v3": {
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "ep_size": 1,
    },
    "mamba": {
        "d_inner": 64,
        "d_model": 32,
        "n_layer": 3,
        "fused_add_norm": True,
        "rms_norm": True,
        "ssm_cfg": {},
    },
    "mamba2": {"norm_before_gate": True, "rms_norm": True, "intermediate_size": 64},
    "jamba": {"use_mamba_kernels": True, "sliding_window": None, "num_logits_to_keep": 1},
    "bamba": {"attn_rotary_emb": 6, "mamba_d_head": "auto"},
}
# What they did not hold yet, beside `dtype` and `rope_parameters`.
_NEWER_KEYS = {
    "llama": ("head_dim",),
    "qwen3": ("layer_types",),
    "deepseek_v2": ("head_dim", "qk_head_dim"),
    "deepseek_v3": ("head_dim", "qk_head_dim"),
}


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hybridrt-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def tiny_checkpoint(name: str, dtype: str = "float32") -> Path:
    """The folder of the row's checkpoint, made at the first call of the process.

    `dtype="bfloat16"` is the same weights, rounded and saved as bfloat16 (what a
    model keeps in float32 stays so).
    """
    row, path = BY_NAME[name], _folder() / f"{name}-{dtype}"
    if row.model_type == "hybrid_stack":
        assert dtype == "float32"
        return _save_stack(row, path)
    if dtype == "float32":
        model = _random_model(row)
    else:
        source = tiny_checkpoint(name)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    options: dict[str, Any] = {"save_original_format": row.layout != "stacked"}
    if row.layout == "sharded":
        options["max_shard_size"] = "40KB"
    model.save_pretrained(path, **options)
    if row.layout == "legacy":
        _rewrite_config(path / "config.json", row.model_type)
    if row.layout == "extra layer":
        _add_layer(path / "model.safetensors", row.config["num_hidden_layers"])
    return path


def _random_model(row: Tiny) -> Any:
    config = AutoConfig.for_model(row.model_type, **copy.deepcopy(dict(row.config)))
    config.eos_token_id = None
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _randomise(model, row.name)
    return model


def _save_stack(row: Tiny, path: Path) -> Path:
    model = DenseStack(dict(row.config))
    _randomise(model, row.name)
    path.mkdir()
    save_file(model.state_dict(), path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps({"model_type": row.model_type, **row.config}))
    return path


@torch.no_grad()
def _randomise(model: nn.Module, name: str) -> None:
    draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    for tensor_name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor_name.endswith("inv_freq"):
            tensor.copy_(_weights(tensor_name, tensor, draw))


def _weights(name: str, like: Tensor, draw: torch.Generator) -> Tensor:
    """Random weights of a size at which every part of the model shows in the logits.

    Norms, biases and the constants of state-space layers are away from their
    usual start, where many mistakes cancel; time constants run from one token to
    hundreds; logits spread over several nats.
    """
    parent, _, leaf = name.rpartition(".")
    uniform = torch.rand(like.shape, generator=draw)
    normal = torch.randn(like.shape, generator=draw)
    if leaf == "A_log":
        return math.log(0.02) + math.log(100) * uniform
    if leaf == "dt_bias" or name.endswith("dt_proj.bias"):
        return -4 + 4 * uniform
    if leaf == "e_score_correction_bias":
        # Mostly negative: a masked group must lose against a negative score too.
        return -1 + 1.4 * uniform
    if leaf == "D":
        return normal
    if "norm" in parent.rpartition(".")[2]:
        return 0.5 + uniform
    if leaf == "bias":
        return 0.5 * normal
    if "embed" in parent or "lm_head" in parent:
        return normal * 3 / math.sqrt(like.shape[-1])
    gain = 3.0 if parent.endswith(("gate", "router")) else 1.5
    return normal * gain / math.sqrt(like.shape[-1])


def _rewrite_config(path: Path, model_type: str) -> None:
    """Spells `config.json` as releases before 5 did, with the keys of those days."""
    config = json.loads(path.read_text())
    for key in _NEWER_KEYS.get(model_type, ()):
        del config[key]
    config["torch_dtype"] = config.pop("dtype")
    rope = config.pop("rope_parameters", None)
    if rope is not None:
        rope.pop("partial_rotary_factor", None)
        rope_type, config["rope_theta"] = rope.pop("rope_type"), rope.pop("rope_theta")
        config["rope_scaling"] = None if rope_type == "default" else {"type": rope_type, **rope}
    if "time_step_limit" in config:
        config["time_step_limit"] = [0.0, math.inf]
    config.update(_LEGACY_KEYS[model_type])
    path.write_text(json.dumps(config, indent=2))


def _add_layer(path: Path, layer: int) -> None:
    tensors = load_file(path)
    for name, tensor in list(tensors.items()):
        if f".layers.{layer - 1}." in name:
            tensors[name.replace(f".layers.{layer - 1}.", f".layers.{layer}.")] = tensor.clone()
    tensors[f"model.layers.{layer}.eh_proj.weight"] = torch.ones(4, 8)
    save_file(tensors, path, metadata={"format": "pt"})
