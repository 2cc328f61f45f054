"""The layers of a hybrid_stack that cache something of every token."""

from typing import Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import nn

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mla import MLA, MLAConfig
from hybridrt.layers.rope import Rope
from hybridrt.models.stack_layer import LayerConfig, StackConfig


class AttentionLayer(LayerConfig):
    """Attention.

    `rope_parameters: null` is attention without positions; left out, it is the default.
    `sliding_window` tokens are seen, or with `attention_chunk_size` those of the token's own
    chunk. `share_cache_of` is the index of an earlier attention layer, whose keys and values
    this one reads instead of its own.
    """

    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    head_dim_v: PositiveInt | None = None
    attention_bias: bool = False
    qk_norm: bool = False
    rope_parameters: dict[str, Any] | None = Field(default_factory=dict)
    sliding_window: PositiveInt | None = None
    attention_chunk_size: PositiveInt | None = None
    sinks: bool = False
    softcap: PositiveFloat | None = None
    share_cache_of: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _one_window(self) -> "AttentionLayer":
        if self.sliding_window is not None and self.attention_chunk_size is not None:
            raise ValueError(
                f"sliding_window={self.sliding_window} and "
                f"attention_chunk_size={self.attention_chunk_size}: one of them should be null"
            )
        return self

    @property
    def window(self) -> Window | None:
        """What a token sees; None: everything before it."""
        size = self.sliding_window or self.attention_chunk_size
        return None if size is None else Window(size, self.sliding_window is None)

    def make(self, model: StackConfig, source: Attention | None = None) -> nn.Module:
        sizes = AttentionConfig(
            hidden_size=model.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            attention_bias=self.attention_bias,
            qk_norm_eps=model.rms_norm_eps if self.qk_norm else None,
            window=self.window,
            sinks=self.sinks,
            softcap=self.softcap,
        )
        if self.rope_parameters is None:
            return Attention(sizes, None, source)
        rope = model.rope(self.rope_parameters)
        dim = int(self.head_dim * (rope.partial_rotary_factor or 1.0))
        return Attention(sizes, Rope(rope, dim), source)


class MLALayer(LayerConfig):
    """Multi-head latent attention."""

    num_attention_heads: PositiveInt
    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    rope_parameters: dict[str, Any] = Field(default_factory=dict)
    rope_interleave: bool = True

    def make(self, model: StackConfig) -> nn.Module:
        sizes = self.model_dump(exclude={"type", "rope_parameters", "rope_interleave"})
        rope = Rope(model.rope(self.rope_parameters), self.qk_rope_head_dim, self.rope_interleave)
        config = MLAConfig(
            hidden_size=model.hidden_size, latent_norm_eps=model.rms_norm_eps, **sizes
        )
        return MLA(config, rope)
