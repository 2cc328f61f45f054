"""Writes GGUF files of checkpoints as llama.cpp's converters do, by the names of the package."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

Encode = Callable[[str, Tensor], tuple[np.ndarray, Any]]
"""A tensor's data as it is written, and its type."""


def plainly(name: str, tensor: Tensor) -> tuple[np.ndarray, Any]:
    """All in float32."""
    import gguf

    return tensor.float().contiguous().numpy(), gguf.GGMLQuantizationType.F32


def write_gguf(
    source: Path, path: Path, architecture: str, metadata: dict[str, Any], encode: Encode = plainly
) -> Path:
    """The checkpoint in `source` as one file."""
    import gguf

    config = json.loads((source / "config.json").read_text())
    number = {name: n for n, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, metadata["block_count"])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_token_list([f"t{i}" for i in range(config["vocab_size"])])
    writer.add_eos_token_id(2)
    for key, value in metadata.items():
        _write_value(writer, f"{architecture}.{key}", value)
    tensors = load_file(source / "model.safetensors")
    for name, tensor in converted(tensors, architecture, config).items():
        named = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert named is not None, f"{name} has no name in {architecture}"
        data, kind = encode(named, tensor)
        writer.add_tensor(named, data, raw_dtype=kind)
    finish(writer)
    return path


def finish(writer: Any) -> None:
    """Writes all that was added."""
    for part in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{part}_to_file")()
    writer.close()


def _write_value(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def in_pairs(tensor: Tensor, heads: int) -> Tensor:
    """Rows as the rotation of neighbours wants them."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def converted(
    tensors: dict[str, Tensor], architecture: str, config: dict[str, Any]
) -> dict[str, Tensor]:
    """The tensors as they are in a file, under names that the package knows."""
    pairs = architecture in ("llama", "nemotron_h", "granitehybrid")
    heads, kv_heads = (config.get(f"num_{x}_heads") for x in ("attention", "key_value"))
    mamba2 = architecture in ("falcon-h1", "nemotron_h", "granitehybrid")
    groups = next((config[k] for k in ("mamba_n_groups", "n_groups") if k in config), 1)
    found: dict[str, Tensor] = {}
    experts: dict[str, list[Tensor]] = {}
    for name, tensor in tensors.items():
        if name.endswith(".A_log"):
            tensor = -tensor.exp()
        if name.endswith((".A_log", ".D")) and mamba2:
            tensor = tensor[:, None]
        if name.endswith(("conv1d.weight", "conv.conv.weight")):
            tensor = tensor.squeeze(1)
        if name.endswith((".mamba.norm.weight", ".mixer.norm.weight")) and mamba2:
            tensor = tensor.view(groups, -1)
        if pairs and ".q_proj." in name:
            tensor = in_pairs(tensor, heads)
        if pairs and ".k_proj." in name:
            tensor = in_pairs(tensor, kv_heads)
        if architecture == "falcon-h1":
            tensor = multiplied(name, tensor, config)
        if name.endswith("dt_bias"):
            name = name.replace("dt_bias", "dt_proj.bias")
        if ".input_linear." in name:
            dense = "mlp" if not config["num_local_experts"] else "mlp.shared_expert"
            at = name.split("block_sparse_moe")[0].split("shared_mlp")[0]
            at += "block_sparse_moe.experts" if "block_sparse" in name else dense
            gate, up = tensor.chunk(2, dim=-2)
            found |= {f"{at}.gate_proj.weight": gate, f"{at}.up_proj.weight": up}
            if "block_sparse" in name:
                for part, letter in (("gate_proj", "w1"), ("up_proj", "w3")):
                    found[f"{at}.{letter}.weight"] = found.pop(f"{at}.{part}.weight")
            continue
        if "shared_mlp.output_linear" in name and not config["num_local_experts"]:
            name = name.replace("shared_mlp.output_linear", "mlp.down_proj")
        if ".feed_forward.experts." in name:
            at, _, rest = name.partition("feed_forward.experts.")
            whole = f"{at}mlp.experts.{rest.split('.', 1)[1]}"
            experts.setdefault(whole, []).append(tensor)
            continue
        found[name] = tensor
    return found | {name: torch.stack(parts) for name, parts in experts.items()}


def multiplied(name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """Falcon-H1's weights with its multipliers."""
    inner, state = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    factors = {
        "down_proj": config["mlp_multipliers"][1],
        "gate_proj": config["mlp_multipliers"][0],
        "k_proj": config["key_multiplier"] * config["attention_in_multiplier"],
        "q_proj": config["attention_in_multiplier"],
        "v_proj": config["attention_in_multiplier"],
        "o_proj": config["attention_out_multiplier"],
        "mamba.out_proj": config["ssm_out_multiplier"],
        "mamba.in_proj": config["ssm_in_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    for part, factor in factors.items():
        if f".{part}." in f".{name}":
            tensor = tensor * factor
    if "mamba.in_proj" in name:
        sizes = [inner, inner, state, state, config["mamba_n_heads"]]
        parts = zip(tensor.split(sizes), config["ssm_multipliers"], strict=True)
        tensor = torch.cat([part * factor for part, factor in parts])
    return tensor
