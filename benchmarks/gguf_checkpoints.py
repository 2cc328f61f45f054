"""The checkpoints of `models.py` as GGUF files that llama.cpp loads, in bfloat16.

Keys, and what happens to tensors, are those of llama.cpp's converters. A file has no vocabulary,
which llama.cpp does without where it gets token ids.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

Config = Mapping[str, Any]

ARCHITECTURES = {
    "llama": "llama",
    "deepseek_v2": "deepseek2",
    "jamba": "jamba",
    "bamba": "granitehybrid",
    "qwen3_next": "qwen3next",
    "lfm2": "lfm2",
}
"""By `model_type`, what llama.cpp calls it."""

IN_FLOAT32 = (
    *("conv1d.weight", "conv.conv.weight", ".mamba.norm.weight", "mlp.gate.weight"),
    *(".A_log", ".D"),
)
"""Ends of the names of tensors that llama.cpp wants so, beside all of one axis."""


def write_gguf(checkpoint: Path, path: Path) -> Path:
    """Writes the checkpoint as one file; returns its path.

    Raises:
        ValueError: llama.cpp isn't known to have the model, or a tensor has no name there.
    """
    import gguf

    config = json.loads((checkpoint / "config.json").read_text())
    model = config["model_type"]
    if model not in ARCHITECTURES:
        raise ValueError(f"model_type={model!r} should be one of {', '.join(ARCHITECTURES)}")
    architecture = ARCHITECTURES[model]
    number = {name: n for n, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("no_vocab")
    for key, value in _metadata(config).items():
        _add(writer, f"{architecture}.{key}", value)
    for name, tensor in _tensors(load_file(checkpoint / "model.safetensors"), config):
        named = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if named is None:
            raise ValueError(f"{checkpoint}: {name!r} has no name in {architecture}")
        if tensor.dim() == 1 or name.endswith(IN_FLOAT32):
            writer.add_tensor(named, tensor.float().contiguous().numpy())
        else:
            raw = tensor.bfloat16().contiguous().view(torch.uint8).numpy()
            writer.add_tensor(named, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    for part in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{part}_to_file")()
    writer.close()
    return path


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


def _metadata(config: Config) -> dict[str, Any]:
    """Keys without the architecture before them."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    shared = {
        "vocab_size": config["vocab_size"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", config.get("norm_eps")),
    }
    if rope:
        rotated = int(head_dim * rope.get("partial_rotary_factor", 1.0))
        shared |= {"rope.dimension_count": rotated, "rope.freq_base": float(rope["rope_theta"])}
    own = {"deepseek_v2": _deepseek, "jamba": _jamba, "bamba": _bamba, "qwen3_next": _qwen3_next}
    return shared | {**own, "lfm2": _lfm2}.get(config["model_type"], lambda _: {})(config)


def _deepseek(config: Config) -> dict[str, Any]:
    """All heads share one latent, which is their key and their value."""
    latent, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    return {
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": config["q_lora_rank"] or 0,
        "attention.kv_lora_rank": latent,
        "attention.key_length": latent + rotated,
        "attention.value_length": latent,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rotated,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": config["norm_topk_prob"],
    }


def _jamba(config: Config) -> dict[str, Any]:
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    count = config["num_hidden_layers"]
    return {
        "attention.head_count_kv": _kv_heads(config, range(offset, count, period)),
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_dt_rank"],
    }


def _bamba(config: Config) -> dict[str, Any]:
    """Granite's hybrid, whose queries and keys are rotated where `finetuned` says so."""
    return {
        "attention.head_count_kv": _kv_heads(config, config["attn_layer_indices"]),
        "rope.scaling.finetuned": True,
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.group_count": config["mamba_n_groups"],
    }


def _qwen3_next(config: Config) -> dict[str, Any]:
    value_heads = config["linear_num_value_heads"]
    return {
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        "full_attention_interval": config["layer_types"].index("full_attention") + 1,
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.inner_size": config["linear_value_head_dim"] * value_heads,
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.time_step_rank": value_heads,
        "ssm.group_count": config["linear_num_key_heads"],
    }


def _lfm2(config: Config) -> dict[str, Any]:
    assert config["block_auto_adjust_ff_dim"]
    wide = int(config["block_ffn_dim_multiplier"] * int(2 * config["intermediate_size"] / 3))
    multiple = config["block_multiple_of"]
    attention = [i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    return {
        "feed_forward_length": -(-wide // multiple) * multiple,
        "attention.head_count_kv": _kv_heads(config, attention),
        "shortconv.l_cache": config["conv_L_cache"],
    }


def _kv_heads(config: Config, attention: Sequence[int]) -> list[int]:
    """Of each layer; 0 where it isn't one of attention."""
    count = config["num_hidden_layers"]
    return [config["num_key_value_heads"] if i in attention else 0 for i in range(count)]


def _tensors(tensors: Mapping[str, Tensor], config: Config) -> Iterator[tuple[str, Tensor]]:
    """As they are in a file, under names that the package knows."""
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.*\.mlp\.experts)\.(\d+)(\..*)", name):
            experts.setdefault(match[1] + match[3], {})[int(match[2])] = tensor
        elif name.endswith(".kv_b_proj.weight"):
            of_heads = tensor.unflatten(0, (config["num_attention_heads"], -1))
            keys, values = of_heads.split([config["qk_nope_head_dim"], config["v_head_dim"]], 1)
            yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), values
        elif name.endswith(".in_proj_qkvz.weight"):
            at = name.removesuffix("in_proj_qkvz.weight")
            qkv, z = _of_key_heads(tensor, config)
            yield f"{at}in_proj_qkv.weight", qkv
            yield f"{at}in_proj_z.weight", z
        else:
            yield name.replace(".dt_bias", ".dt_proj.bias"), _converted(name, tensor, config)
    for name, parts in experts.items():
        yield name, torch.stack([parts[i] for i in range(len(parts))])


def _converted(name: str, tensor: Tensor, config: Config) -> Tensor:
    model = config["model_type"]
    if name.endswith(".A_log"):
        tensor = -tensor.float().exp()
    if name.endswith((".A_log", ".D")) and model == "bamba":
        return tensor[:, None]
    if name.endswith(("conv1d.weight", "conv.conv.weight")):
        return tensor.squeeze(1)
    if name.endswith(".mamba.norm.weight"):
        return tensor.view(config["mamba_n_groups"], -1)
    if name.endswith("norm.weight") and model == "qwen3_next" and ".linear_attn." not in name:
        return tensor.float() + 1
    if model in ("llama", "bamba") and (match := re.search(r"\.([qk])_proj\.", name)):
        heads = config["num_attention_heads" if match[1] == "q" else "num_key_value_heads"]
        return _in_pairs(tensor, heads, config["rope_parameters"].get("partial_rotary_factor", 1))
    return tensor


def _in_pairs(weight: Tensor, heads: int, rotated: float) -> Tensor:
    """The rotated rows of each head as the rotation of neighbours wants them."""
    rows = weight.unflatten(0, (heads, -1))
    size = rows.shape[1]
    turned, still = rows.split([int(size * rotated), size - int(size * rotated)], 1)
    turned = turned.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return torch.cat([turned, still], 1).flatten(0, 1)


def _of_key_heads(weight: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """Rows of q, k and v, each of all heads, and those of z; they come head by head of a key."""
    heads, key = config["linear_num_key_heads"], config["linear_key_head_dim"]
    value = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    parts = weight.unflatten(0, (heads, -1)).split([key, key, value, value], 1)
    q, k, v, z = (part.flatten(0, 1) for part in parts)
    return torch.cat([q, k, v]), z
