"""DeepSeek-V2 (arXiv 2405.04434): MLA, and mixtures of experts routed by softmax."""

from typing import Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.mla import MLA, MLAConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer


class Config(ModelConfig):
    """Keys of a DeepSeek-V2 `config.json`."""

    intermediate_size: PositiveInt
    moe_intermediate_size: PositiveInt = 1407
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = None
    q_lora_rank: PositiveInt | None = 1536
    kv_lora_rank: PositiveInt = 512
    qk_nope_head_dim: PositiveInt = 128
    qk_rope_head_dim: PositiveInt = 64
    v_head_dim: PositiveInt = 128
    n_routed_experts: PositiveInt = 64
    n_shared_experts: int | None = 2
    num_experts_per_tok: PositiveInt
    first_k_dense_replace: int = 0
    moe_layer_freq: Literal[1] = 1
    scoring_func: Literal["softmax"] = "softmax"
    topk_method: Literal["greedy", "group_limited_greedy"] = "greedy"
    n_group: PositiveInt | None = None
    topk_group: PositiveInt | None = None
    norm_topk_prob: Literal[False] = False
    routed_scaling_factor: float = 1.0
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: float = 1e-6
    rope_parameters: RopeConfig
    rope_interleave: Literal[True] = True
    attention_bias: bool = False
    mlp_bias: bool = False

    without_effect = ("head_dim", "qk_head_dim")

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        limited = self.topk_method == "group_limited_greedy"
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.n_routed_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            norm_topk_prob=False,
            routed_scaling_factor=self.routed_scaling_factor,
            n_group=(self.n_group or 1) if limited else 1,
            topk_group=(self.topk_group or 1) if limited else 1,
            shared_intermediate_size=self.moe_intermediate_size * (self.n_shared_experts or 0),
            shared_bias=self.mlp_bias,
        )

    @property
    def mla(self) -> MLAConfig:
        """The attention's sizes."""
        return MLAConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
            attention_bias=self.attention_bias,
        )

    def is_dense(self, index: int) -> bool:
        """Whether a layer has an MLP in place of experts."""
        return index < self.first_k_dense_replace

    def feed_forward(self, index: int) -> nn.Module:
        """What stands behind a layer's attention."""
        if self.is_dense(index):
            return MLP(self.hidden_size, self.intermediate_size, self.mlp_bias)
        return MoE(self.moe)

    def attention(self, index: int, rope: Rope) -> nn.Module:
        """A layer's attention."""
        return MLA(self.mla, rope)


class Model(CausalLM):
    """MLA in every layer; the first `first_k_dense_replace` have a dense MLP."""

    Config = Config

    def __init__(self, config: Config) -> None:
        rope = Rope(config.rope_parameters, config.qk_rope_head_dim, config.rope_interleave)
        layers = [
            DecoderLayer(
                config.hidden_size,
                config.rms_norm_eps,
                config.attention(i, rope),
                config.feed_forward(i),
            )
            for i in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, config.rms_norm_eps, [rope])
