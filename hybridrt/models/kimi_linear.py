"""Kimi Linear (arXiv 2510.26692): KDA, MLA without positions among it, experts."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.kda import KimiDeltaAttention, KimiDeltaAttentionConfig
from hybridrt.layers.mla import MLA
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models import deepseek_v3
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import MLP_RENAMES, DecoderLayer
from hybridrt.values import Value

_DEEPSEEK_NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "moe_router_activation_func": "scoring_func",
    "num_expert_group": "n_group",
    "num_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_local_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
}


class LinearAttnConfig(Value):
    """`linear_attn_config`, which comes before keys beside it. Layers are counted from 1."""

    head_dim: PositiveInt
    num_heads: PositiveInt
    short_conv_kernel_size: PositiveInt = 4
    full_attn_layers: list[int] | None = None
    kda_layers: list[int] | None = None


class Config(deepseek_v3.Config):
    """Keys of a Kimi Linear `config.json`, in its words or in DeepSeek's."""

    num_experts_per_tok: PositiveInt = 8
    n_group: PositiveInt | None = 1
    topk_group: PositiveInt | None = 1
    use_grouped_topk: Literal[True] = True
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 2.446
    q_lora_rank: PositiveInt | None = None
    max_position_embeddings: PositiveInt = 1_048_576
    rms_norm_eps: float = 1e-5
    rope_parameters: RopeConfig | None = None
    mla_use_nope: Literal[True] = True
    tie_word_embeddings: Literal[False] = False
    linear_head_dim: PositiveInt | None = None
    linear_num_heads: PositiveInt | None = None
    linear_conv_kernel_dim: PositiveInt | None = None
    linear_attn_config: LinearAttnConfig | None = None
    layer_types: list[Literal["linear_attention", "full_attention"]] | None = None
    mlp_layer_types: list[Literal["dense", "sparse"]] | None = None

    has_rope = False
    # Nothing is rotated; the layers that predict further tokens are not used.
    without_effect = (
        *("head_dim", "qk_head_dim", "rope_theta", "rope_scaling"),
        "num_nextn_predict_layers",
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As `ModelConfig.from_json`."""
        values = {_DEEPSEEK_NAMES.get(key, key): value for key, value in config.items()}
        if not cls.has_rope:
            values.pop("rope_parameters", None)
        if values.get("linear_attn_config") is not None:
            values["linear_attn_config"] = LinearAttnConfig(**values["linear_attn_config"])
        return super().from_json(values, ignore)

    def is_attention(self, index: int) -> bool:
        """Whether the layer is MLA; else it is linear attention."""
        if self.layer_types is not None:
            return self.layer_types[index] == "full_attention"
        inner = self.linear_attn_config
        if inner is not None and inner.full_attn_layers is not None:
            return index + 1 in inner.full_attn_layers
        return index > 0 and index % 4 == 0

    @property
    def kda(self) -> KimiDeltaAttentionConfig:
        """The linear attention's sizes."""
        inner = self.linear_attn_config
        return KimiDeltaAttentionConfig(
            hidden_size=self.hidden_size,
            num_heads=inner.num_heads if inner else self.linear_num_heads or 32,
            head_dim=inner.head_dim if inner else self.linear_head_dim or 128,
            conv_kernel=(
                inner.short_conv_kernel_size if inner else self.linear_conv_kernel_dim or 4
            ),
            norm_eps=self.rms_norm_eps,
        )

    def mixer(self, index: int, rope: Rope | None) -> CachedLayer:
        """MLA or KDA."""
        if self.is_attention(index):
            return MLA(self.mla, rope)
        return KimiDeltaAttention(self.kda)

    def feed_forward(self, index: int) -> nn.Module:
        """An MLP in the first layers, experts in the others."""
        dense = index < self.first_k_dense_replace
        if self.mlp_layer_types is not None:
            dense = self.mlp_layer_types[index] == "dense"
        return MLP(self.hidden_size, self.intermediate_size) if dense else MoE(self.moe)


class Model(CausalLM):
    """KDA and MLA, each followed by an MLP or experts."""

    Config = Config
    checkpoint_renames = (
        (r"\.block_sparse_moe\.", ".mlp."),
        *MLP_RENAMES,
    )

    def __init__(self, config: Config) -> None:
        rotated = config.rope_parameters
        rope = (
            Rope(rotated, config.qk_rope_head_dim, config.rope_interleave)
            if rotated is not None
            else None
        )
        layers = [
            DecoderLayer(
                config.hidden_size,
                config.rms_norm_eps,
                config.mixer(i, rope),
                config.feed_forward(i),
            )
            for i in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, config.rms_norm_eps, [] if rope is None else [rope])
