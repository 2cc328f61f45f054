"""Jamba (arXiv 2403.19887): Mamba-1 layers, attention without positions among them, experts."""

from typing import Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.mamba1 import Mamba1, Mamba1Config
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.layers.norm import RMSNorm, add_and_norm
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.stream import Hidden, StreamLayer


class Config(ModelConfig):
    """Keys of a Jamba `config.json`. The default sizes are those of the published models."""

    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = 8
    head_dim: PositiveInt | None = None
    num_experts: PositiveInt = 16
    num_experts_per_tok: PositiveInt = 2
    expert_layer_period: PositiveInt = 2
    expert_layer_offset: int = 1
    attn_layer_period: PositiveInt = 8
    attn_layer_offset: int = 4
    mamba_d_state: PositiveInt = 16
    mamba_d_conv: PositiveInt = 4
    mamba_expand: PositiveInt = 2
    mamba_dt_rank: int | Literal["auto"] = "auto"
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    mamba_inner_layernorms: Literal[True] = True
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 262_144
    rms_norm_eps: float = 1e-6
    sliding_window: None = None

    has_rope = False
    without_effect = ("calc_logits_for_entire_prompt", "layers_block_type", "n_ctx")

    def mixer(self, index: int) -> CachedLayer:
        """Attention in one layer of every `attn_layer_period`, Mamba-1 in the others."""
        if index % self.attn_layer_period == self.attn_layer_offset:
            heads = self.num_attention_heads
            sizes = AttentionConfig(
                hidden_size=self.hidden_size,
                num_attention_heads=heads,
                num_key_value_heads=self.num_key_value_heads or heads,
                head_dim=self.head_dim or self.hidden_size // heads,
            )
            return Attention(sizes, rope=None)
        rank = self.mamba_dt_rank
        mamba = Mamba1Config(
            hidden_size=self.hidden_size,
            intermediate_size=self.mamba_expand * self.hidden_size,
            state_size=self.mamba_d_state,
            conv_kernel=self.mamba_d_conv,
            time_step_rank=-(-self.hidden_size // 16) if rank == "auto" else rank,
            use_bias=self.mamba_proj_bias,
            use_conv_bias=self.mamba_conv_bias,
            inner_norm_eps=self.rms_norm_eps,
        )
        return Mamba1(mamba)

    def feed_forward(self, index: int) -> nn.Module:
        """Experts in one layer of every `expert_layer_period`, an MLP in the others."""
        routed = index % self.expert_layer_period == self.expert_layer_offset
        if self.num_experts == 1 or not routed:
            return MLP(self.hidden_size, self.intermediate_size)
        sizes = MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.intermediate_size,
            num_experts=self.num_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            norm_topk_prob=False,
        )
        return MoE(sizes)


class Layer(StreamLayer):
    """A mixer, `self_attn` or `mamba`, then a feed-forward layer, each behind a norm."""

    def __init__(
        self, hidden_size: int, norm_eps: float, mixer: CachedLayer, feed_forward: nn.Module
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, norm_eps)
        self.mixer_name = "self_attn" if isinstance(mixer, Attention) else "mamba"
        self.add_module(self.mixer_name, mixer)
        self.pre_ff_layernorm = RMSNorm(hidden_size, norm_eps)
        self.feed_forward = feed_forward

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        mixer = self.get_submodule(self.mixer_name)
        mixed = mixer(normed, batch)
        x, normed = add_and_norm(x, mixed, self.pre_ff_layernorm)
        return x, self.feed_forward(normed)


class Model(CausalLM):
    """Mamba-1 and attention layers, each followed by an MLP or experts."""

    Config = Config
    checkpoint_renames = (
        (r"^model\.final_layernorm\.", "model.norm."),
        (r"\.feed_forward\.router\.", ".feed_forward.gate."),
    )

    def __init__(self, config: Config) -> None:
        eps = config.rms_norm_eps
        layers = [
            Layer(config.hidden_size, eps, config.mixer(i), config.feed_forward(i))
            for i in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, eps)
