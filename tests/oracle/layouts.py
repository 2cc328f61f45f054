"""Checkpoints as others have saved them: what `Tiny.layout` asks for."""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def release_axk1(path: Path) -> None:
    """Leaves out the bias of the choice; adds the norm that the first layer doesn't use."""
    tensors = load_file(path)
    kept = {n: t for n, t in tensors.items() if not n.endswith("e_score_correction_bias")}
    assert len(kept) < len(tensors)
    norm = kept["model.layers.1.post_mlp_layernorm.weight"]
    kept["model.layers.0.post_mlp_layernorm.weight"] = norm.clone()
    save_file(kept, path, metadata={"format": "pt"})


def release_deepseek_v4(path: Path) -> None:
    """Spells names and keys as the release does; adds a layer that predicts a further token."""
    config = json.loads((path / "config.json").read_text())
    for key in ("compress_rates", "mlp_layer_types", "partial_rotary_factor"):
        del config[key]
    ratios = {"sliding": 0, "compressed": 4, "heavily": 128}
    types = [layer_type.partition("_")[0] for layer_type in config.pop("layer_types")]
    stretched = config.pop("rope_parameters")["compress"]
    names = ("factor", "original_max_position_embeddings")
    config |= {
        "compress_ratios": [*(ratios[of] for of in types), 0],
        "num_hash_layers": 1,
        "rope_scaling": {"type": "yarn", **{name: stretched[name] for name in names}},
        "topk_method": "noaux_tc",
        "torch_dtype": config.pop("dtype"),
    }
    (path / "config.json").write_text(json.dumps(config, indent=2))
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        name = name.removeprefix("model.")
        name = re.sub(r"^hc_head\.hc_", "hc_head_", name)
        name = name.replace("embed_tokens.", "embed.").replace("attn.norm.", "attn.kv_norm.")
        tensors[name] = tensor
        if name.startswith("layers.0."):
            tensors[name.replace("layers.0.", "mtp.0.")] = tensor.clone()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def add_layer(path: Path, layer: int) -> None:
    """Adds a layer beyond the last, which predicts a further token."""
    tensors = load_file(path)
    for name, tensor in list(tensors.items()):
        if f".layers.{layer - 1}." in name:
            tensors[name.replace(f".layers.{layer - 1}.", f".layers.{layer}.")] = tensor.clone()
    tensors[f"model.layers.{layer}.eh_proj.weight"] = torch.ones(4, 8)
    save_file(tensors, path, metadata={"format": "pt"})


def nest(path: Path, model_type: str) -> None:
    """Makes the model the text model of a multimodal one."""
    text = json.loads((path / "config.json").read_text())
    tied = text.get("tie_word_embeddings", False)
    config = {"model_type": model_type, "text_config": text, "tie_word_embeddings": tied}
    (path / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {
        re.sub(r"^model\.", "model.language_model.", name): tensor
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    tensors["model.visual.merger.norm.weight"] = torch.ones(8)
    if model_type.startswith("qwen3_5"):
        tensors["mtp.fc.weight"] = torch.ones(4, 8)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def cut_convolutions(path: Path) -> None:
    """Gives each of three convolutions side by side the channels of its own projection."""
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(".q_conv1d.weight")]:
        names = [name.replace(".q_conv1d.", f".{part}_conv1d.") for part in "qkv"]
        sizes = [len(tensors[name.replace("_conv1d.", "_proj.")]) for name in names]
        parts = torch.cat([tensors[name] for name in names]).split(sizes)
        tensors |= {name: part.clone() for name, part in zip(names, parts, strict=True)}
    save_file(tensors, path, metadata={"format": "pt"})
