"""The models that GGUF files are read of, and what their tensors are called in a checkpoint.

Facts are those of llama.cpp's converters.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hybridrt.engine import gguf_config
from hybridrt.engine.gguf_metadata import Metadata


@dataclass(frozen=True, slots=True)
class GgufModel:
    """How one architecture is read.

    Attributes:
        config: further keys of the `config.json`, taken from the metadata.
        names: a file's name -> a checkpoint's, of tensors beside the layers.
        layers: what the names of a checkpoint's layers begin with.
        blocks: the same for a layer's, without `.weight`. `{e}` stands for each expert;
            a `+` ends the name of a tensor that holds the rows of several.
        pairs_rows: rows of queries and keys are ordered in pairs.
    """

    config: Callable[[Metadata], dict[str, Any]]
    names: Mapping[str, str]
    layers: str
    blocks: Mapping[str, str]
    pairs_rows: bool = False

    def name_of(self, name: str) -> str:
        """The checkpoint's name of a tensor; one that isn't known keeps its own."""
        found = re.fullmatch(r"blk\.(\d+)\.(.+?)(\.weight|\.bias)?", name)
        if found is None:
            stem, dot, end = name.rpartition(".")
            return f"{self.names[stem]}{dot}{end}" if stem in self.names else name
        number, stem, end = found.groups(default=".weight")
        at = f"{self.layers}.{number}"
        if f"{stem}{end}" in self.blocks:
            return f"{at}.{self.blocks[stem + end]}"
        if stem not in self.blocks:
            return name
        # These have no module of their own.
        return f"{at}.{self.blocks[stem]}{'' if stem in ('ssm_a', 'ssm_d') else end}"


def _attention_names(at: str, out: str = "o_proj") -> dict[str, str]:
    own = {f"attn_{x}": f"{at}.{x}_proj" for x in "qkv"}
    return {**own, "attn_output": f"{at}.{out}"}


def _feed_forward_names(at: str) -> dict[str, str]:
    return {f"ffn_{x}": f"{at}.{x}_proj" for x in ("gate", "up", "down")}


def _mamba_names(at: str) -> dict[str, str]:
    return {
        "ssm_in": f"{at}.in_proj",
        "ssm_conv1d": f"{at}.conv1d",
        "ssm_a": f"{at}.A_log",
        "ssm_d": f"{at}.D",
        "ssm_out": f"{at}.out_proj",
    }


def _mamba1_names(at: str) -> dict[str, str]:
    return {**_mamba_names(at), "ssm_x": f"{at}.x_proj", "ssm_dt": f"{at}.dt_proj"}


def _mamba2_names(at: str) -> dict[str, str]:
    return {**_mamba_names(at), "ssm_dt.bias": f"{at}.dt_bias", "ssm_norm": f"{at}.norm"}


def _names(norm: str, embedding: str = "model.embed_tokens") -> dict[str, str]:
    return {"token_embd": embedding, "output_norm": norm, "output": "lm_head"}


_BACKBONE = _names("backbone.norm_f", "backbone.embeddings")

GGUF_MODELS: Mapping[str, GgufModel] = {
    "llama": GgufModel(
        gguf_config.llama,
        _names("model.norm"),
        "model.layers",
        {
            "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            **_attention_names("self_attn"),
            **_feed_forward_names("mlp"),
        },
        pairs_rows=True,
    ),
    "mamba": GgufModel(
        gguf_config.mamba,
        _BACKBONE,
        "backbone.layers",
        {"attn_norm": "norm", **_mamba1_names("mixer")},
    ),
    "jamba": GgufModel(
        gguf_config.jamba,
        _names("model.final_layernorm"),
        "model.layers",
        {
            "attn_norm": "input_layernorm",
            "ffn_norm": "pre_ff_layernorm",
            "ffn_gate_inp": "feed_forward.router",
            **{
                f"ffn_{x}_exps": f"feed_forward.experts.{{e}}.{x}_proj"
                for x in ("gate", "up", "down")
            },
            **{f"ssm_{x}_norm": f"mamba.{x}_layernorm" for x in ("dt", "b", "c")},
            **_attention_names("self_attn"),
            **_mamba1_names("mamba"),
            **_feed_forward_names("feed_forward"),
        },
    ),
    "falcon-h1": GgufModel(
        gguf_config.falcon_h1,
        _names("model.final_layernorm"),
        "model.layers",
        {
            "attn_norm": "input_layernorm",
            "ffn_norm": "pre_ff_layernorm",
            **_attention_names("self_attn"),
            **_mamba2_names("mamba"),
            **_feed_forward_names("feed_forward"),
        },
    ),
    "nemotron_h": GgufModel(
        gguf_config.nemotron_h,
        _BACKBONE,
        "backbone.layers",
        {
            "attn_norm": "norm",
            **_attention_names("mixer"),
            **_mamba2_names("mixer"),
            **_feed_forward_names("mixer"),
        },
        pairs_rows=True,
    ),
    "granitehybrid": GgufModel(
        gguf_config.granite_hybrid,
        _names("model.norm"),
        "model.layers",
        {
            "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate_inp": "block_sparse_moe.router.layer",
            **{f"ffn_{x}_exps": "block_sparse_moe.input_linear+" for x in ("gate", "up")},
            "ffn_down_exps": "block_sparse_moe.output_linear",
            **{f"ffn_{x}": "shared_mlp.input_linear+" for x in ("gate", "up")},
            **{f"ffn_{x}_shexp": "shared_mlp.input_linear+" for x in ("gate", "up")},
            "ffn_down": "shared_mlp.output_linear",
            "ffn_down_shexp": "shared_mlp.output_linear",
            **_attention_names("self_attn"),
            **_mamba2_names("mamba"),
        },
        pairs_rows=True,
    ),
    "lfm2": GgufModel(
        gguf_config.lfm2,
        {**_names("model.norm"), "token_embd_norm": "model.embedding_norm"},
        "model.layers",
        {
            "attn_norm": "operator_norm",
            "ffn_norm": "ffn_norm",
            "attn_q_norm": "self_attn.q_layernorm",
            "attn_k_norm": "self_attn.k_layernorm",
            **{f"shortconv.{x}": f"conv.{x}" for x in ("conv", "in_proj", "out_proj")},
            "ffn_gate": "feed_forward.w1",
            "ffn_up": "feed_forward.w3",
            "ffn_down": "feed_forward.w2",
            **_attention_names("self_attn", "out_proj"),
        },
    ),
}
"""By `general.architecture`."""
