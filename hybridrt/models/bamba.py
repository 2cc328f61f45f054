"""Bamba: Mamba-2 layers, a few of attention among them."""

from math import inf
from typing import Literal

from pydantic import PositiveInt

from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.mamba2 import Limits, Mamba2, Mamba2Config
from hybridrt.layers.mlp import MLP
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.jamba import Layer


class HybridConfig(ModelConfig):
    """The keys of attention and Mamba-2 that Bamba, Falcon-H1 and Granite 4 share."""

    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = 8
    head_dim: PositiveInt | None = None
    mamba_n_heads: PositiveInt = 128
    mamba_d_head: int | Literal["auto"] = "auto"
    mamba_n_groups: PositiveInt = 1
    mamba_d_state: PositiveInt = 256
    mamba_d_conv: PositiveInt = 4
    mamba_expand: PositiveInt = 2
    mamba_chunk_size: PositiveInt = 256
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: Limits = (0.0, inf)
    hidden_act: Literal["silu"] = "silu"
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False

    @property
    def attention(self) -> AttentionConfig:
        """The attention layers' sizes."""
        heads = self.num_attention_heads
        return AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=heads,
            num_key_value_heads=self.num_key_value_heads or heads,
            head_dim=self.head_dim or self.hidden_size // heads,
            attention_bias=self.attention_bias,
        )

    @property
    def inner(self) -> int:
        """Channels of the recurrence."""
        return self.mamba_expand * self.hidden_size

    @property
    def mamba(self) -> Mamba2Config:
        """The Mamba-2 layers' sizes."""
        size = self.mamba_d_head
        return Mamba2Config(
            hidden_size=self.hidden_size,
            num_heads=self.mamba_n_heads,
            head_dim=self.inner // self.mamba_n_heads if size == "auto" else size,
            state_size=self.mamba_d_state,
            n_groups=self.mamba_n_groups,
            conv_kernel=self.mamba_d_conv,
            chunk_size=self.mamba_chunk_size,
            use_bias=self.mamba_proj_bias,
            use_conv_bias=self.mamba_conv_bias,
            time_step_limit=self.time_step_limit,
            norm_eps=self.rms_norm_eps,
        )


class Config(HybridConfig):
    """Keys of a Bamba `config.json`. Half of each head is rotated unless it says otherwise."""

    intermediate_size: PositiveInt
    attn_layer_indices: list[int] | None = None
    attn_rotary_emb: int | None = None
    max_position_embeddings: PositiveInt = 262_144
    rope_parameters: RopeConfig
    mlp_bias: bool = False

    has_partial_rope = True
    # transformers takes the factor inside rope_parameters and writes over this one.
    without_effect = ("partial_rotary_factor",)

    def rope(self) -> Rope:
        """The rotary table of the attention layers."""
        factor = self.rope_parameters.partial_rotary_factor
        dim = int(self.attention.head_dim * (0.5 if factor is None else factor))
        if self.attn_rotary_emb not in (None, dim):
            raise ValueError(f"attn_rotary_emb={self.attn_rotary_emb} should be {dim}")
        return Rope(self.rope_parameters, dim)


class Model(CausalLM):
    """Mamba-2 and attention layers, each followed by an MLP."""

    Config = Config
    checkpoint_renames = ((r"^model\.final_layernorm\.", "model.norm."),)

    def __init__(self, config: Config) -> None:
        rope = config.rope()

        def mixer(index: int) -> CachedLayer:
            if index in (config.attn_layer_indices or ()):
                return Attention(config.attention, rope)
            return Mamba2(config.mamba)

        def mlp() -> MLP:
            return MLP(config.hidden_size, config.intermediate_size, config.mlp_bias)

        eps = config.rms_norm_eps
        layers = [
            Layer(config.hidden_size, eps, mixer(i), mlp()) for i in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, eps, [rope])
