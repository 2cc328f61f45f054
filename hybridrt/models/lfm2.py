"""LFM2 (Liquid AI, 2025): gated short convolutions, a few layers of attention among them."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.mlp import MLP
from hybridrt.layers.norm import RMSNorm, add_and_norm
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.layers.short_conv import ShortConv, ShortConvConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import MLP_RENAMES
from hybridrt.models.stream import Hidden, StreamLayer


class Config(ModelConfig):
    """Keys of an LFM2 `config.json`. `intermediate_size` may be adjusted by the `block_` keys."""

    intermediate_size: PositiveInt = 12_288
    num_attention_heads: PositiveInt = 32
    num_key_value_heads: PositiveInt = 8
    head_dim: PositiveInt | None = None
    max_position_embeddings: PositiveInt = 128_000
    norm_eps: float = 1e-5
    rope_parameters: RopeConfig
    tie_word_embeddings: bool = True
    conv_bias: bool = False
    conv_L_cache: PositiveInt = 3  # noqa: N815
    block_ff_dim: PositiveInt | None = None
    block_multiple_of: PositiveInt = 256
    block_ffn_dim_multiplier: float | int = 1.0
    block_auto_adjust_ff_dim: bool = True
    block_use_swiglu: Literal[True] = True
    use_pos_enc: Literal[True] = True
    layer_types: list[Literal["conv", "full_attention"]] | None = None
    full_attn_idxs: list[int] | None = None

    default_rope_theta = 1_000_000.0
    # Second names of sizes, which transformers doesn't read, and scales of random weights.
    without_effect = (
        *("block_dim", "block_norm_eps", "conv_dim", "conv_dim_out", "num_heads"),
        *("block_mlp_init_scale", "block_out_init_scale"),
        *("block_use_xavier_init", "conv_use_xavier_init"),
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As `ModelConfig.from_json`; `tie_embedding` is an older `tie_word_embeddings`."""
        values = dict(config)
        if values.get("tie_embedding") is not None:
            values["tie_word_embeddings"] = values.pop("tie_embedding")
        return super().from_json(values, ignore)

    @property
    def attention_head_dim(self) -> int:
        """Dimensions of a head, which the file needn't say."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def is_attention(self, index: int) -> bool:
        """Whether the layer is attention; else it is a convolution."""
        if self.layer_types is not None:
            return self.layer_types[index] == "full_attention"
        return self.full_attn_idxs is None or index in self.full_attn_idxs

    def mixer(self, index: int, rope: Rope | None) -> CachedLayer:
        """Attention, or a short convolution."""
        if self.is_attention(index):
            return self.attention(index, rope)
        width, bias = self.conv_L_cache, self.conv_bias
        return ShortConv(
            ShortConvConfig(hidden_size=self.hidden_size, conv_kernel=width, use_bias=bias)
        )

    def attention(self, index: int, rope: Rope | None) -> CachedLayer:
        """Attention."""
        sizes = AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.attention_head_dim,
            qk_norm_eps=self.norm_eps,
        )
        return Attention(sizes, rope)

    def feed_forward(self, index: int) -> nn.Module:
        """An MLP of the adjusted size."""
        size = self.block_ff_dim or self.intermediate_size
        if self.block_auto_adjust_ff_dim:
            size = int(self.block_ffn_dim_multiplier * int(2 * size / 3))
            size = -(-size // self.block_multiple_of) * self.block_multiple_of
        return MLP(self.hidden_size, size)


class Layer(StreamLayer):
    """A mixer, `self_attn` or `conv`, then a feed-forward layer, each behind a norm."""

    entry_norm = "operator_norm"

    def __init__(self, config: Config, index: int, rope: Rope | None) -> None:
        super().__init__()
        self.operator_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mixer_name = "self_attn" if config.is_attention(index) else "conv"
        self.add_module(self.mixer_name, config.mixer(index, rope))
        self.ffn_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.feed_forward = config.feed_forward(index)

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        mixer = self.get_submodule(self.mixer_name)
        mixed = mixer(normed, batch)
        x, normed = add_and_norm(x, mixed, self.ffn_norm)
        return x, self.feed_forward(normed)


class Model(CausalLM):
    """Short convolutions and attention, each followed by an MLP."""

    Config = Config
    text_config_of = ("lfm2_vl", "lfm2-vl")
    checkpoint_renames = (
        (r"^model\.embedding_norm\.", "model.norm."),
        (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."),
        *MLP_RENAMES,
        (r"\.feed_forward\.expert_bias$", ".feed_forward.gate.e_score_correction_bias"),
    )

    def __init__(self, config: Config) -> None:
        rope = Rope(config.rope_parameters, config.attention_head_dim)
        layers = [Layer(config, i, rope) for i in range(config.num_hidden_layers)]
        super().__init__(config, layers, config.norm_eps, [rope])
