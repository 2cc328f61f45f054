"""Phi-3.5-MoE (arXiv 2404.14219): Mixtral with LayerNorm, and experts chosen by a sparse mixer.

Beyond `original_max_position_embeddings` LongRoPE has other factors, as in Phi-3. (transformers
5.23 turns by the short ones there too.)
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.norm import LayerNorm
from hybridrt.layers.sparse_mixer import SparseMixerMoE
from hybridrt.models import mixtral
from hybridrt.models.config import ModelConfig


class Config(mixtral.Config):
    """Keys of a `phimoe` `config.json`. Experts near the best by `router_jitter_noise` count."""

    intermediate_size: PositiveInt = 6400
    num_attention_heads: PositiveInt = 32
    max_position_embeddings: PositiveInt = 131_072
    attention_bias: bool = False
    num_local_experts: PositiveInt | None = 16
    num_experts_per_tok: Literal[2] = 2
    router_jitter_noise: float = 0.01
    lm_head_bias: bool = False

    norm_class = LayerNorm
    without_effect = ("input_jitter_noise",)

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model. LongRoPE's table is multiplied by `short_mscale`.

        Raises:
            ValueError: also if positions are stretched in another way, or `long_mscale` differs.
        """
        key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        rope = dict(config.get(key) or {})
        short, long = rope.pop("short_mscale", None), rope.pop("long_mscale", None)
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind not in ("default", "longrope"):
            raise ValueError(f"config.json: rope_type={kind!r} should be 'default' or 'longrope'")
        if kind == "longrope":
            if short is None or short != long:
                raise ValueError(f"config.json: long_mscale={long} should be short_mscale={short}")
            rope["attention_factor"] = float(short)
        return super().from_json({**config, key: rope}, ignore)

    def feed_forward(self, index: int) -> nn.Module:
        """Experts in every layer."""
        return SparseMixerMoE(self.moe, self.router_jitter_noise)


class Model(mixtral.Model):
    """Attention and experts in every layer."""

    Config = Config
    norm_class = LayerNorm
    checkpoint_renames = (*mixtral.Model.checkpoint_renames, (r"\.mlp\.router\.", ".mlp.gate."))

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.lm_head_bias:
            bias = torch.empty(config.vocab_size)
            self.lm_head.bias = nn.Parameter(bias, requires_grad=False)
