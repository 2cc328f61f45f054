"""LFM3 (Liquid AI, 2026): LFM2 with windows in half of its attention, gates and more norms."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import Window
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.gated_attention import HeadGatedAttention
from hybridrt.layers.norm import RMSNorm, add_and_norm
from hybridrt.layers.rope import Rope, RopeConfig, rope_by_layer_type
from hybridrt.models import lfm2
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.stream import Hidden

LayerType = Literal["conv", "full_attention", "sliding_attention"]
_ROPES = {
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1_000_000.0,
        "partial_rotary_factor": 0.5,
    },
    "sliding_attention": {"rope_theta": 10_000.0},
}


class Config(lfm2.Config):
    """Keys of an LFM3 `config.json`. Sizes are not adjusted."""

    intermediate_size: PositiveInt = 7680
    num_attention_heads: PositiveInt = 16
    num_key_value_heads: PositiveInt = 4
    head_dim: PositiveInt = 128
    rope_parameters: dict[str, RopeConfig]
    attention_bias: bool = False
    conv_L_cache: PositiveInt = 7  # noqa: N815
    sliding_window: PositiveInt | None = 256
    layer_types: list[LayerType] | None = None
    full_attn_idxs: None = None
    use_sandwich_norm: bool = True
    use_attention_gate: bool = True
    block_auto_adjust_ff_dim: Literal[False] = False

    has_rope = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As `ModelConfig.from_json`."""
        ropes = rope_by_layer_type(config, _ROPES)
        for layer_type, rope in ropes.items():
            partial = rope.partial_rotary_factor not in (None, 1.0)
            if partial and rope.rope_type != "proportional":
                raise ValueError(
                    f"config.json: rope_parameters[{layer_type!r}] has partial_rotary_factor="
                    f"{rope.partial_rotary_factor}, which LFM3 has with 'proportional' alone"
                )
        return super().from_json({**config, "rope_parameters": ropes}, ignore)

    def layer_type(self, index: int) -> LayerType:
        """The mixer's, of every fourth layer by default."""
        if self.layer_types is not None:
            return self.layer_types[index]
        if index % 4 == 2:
            return "full_attention"
        return "sliding_attention" if index % 4 == 0 and index > 0 else "conv"

    def is_attention(self, index: int) -> bool:
        """Whether the layer is attention, with a window or without."""
        return self.layer_type(index) != "conv"

    def attention(self, index: int, rope: Rope | None) -> CachedLayer:
        """Attention, gated or not."""
        sliding = self.layer_type(index) == "sliding_attention"
        if sliding and self.sliding_window is None:
            raise ValueError(f"sliding_window=None should be a number: layer {index} is sliding")
        sizes = AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            attention_bias=self.attention_bias,
            qk_norm_eps=self.norm_eps,
            window=Window(self.sliding_window) if sliding and self.sliding_window else None,
        )
        return (HeadGatedAttention if self.use_attention_gate else Attention)(sizes, rope)


class Layer(lfm2.Layer):
    """LFM2's, with norms behind the mixer and the MLP too, unless the config has none."""

    def __init__(self, config: Config, index: int, rope: Rope | None) -> None:
        super().__init__(config, index, rope)
        size, eps = config.hidden_size, config.norm_eps
        self.post_operator_norm, self.post_ffn_norm = (
            RMSNorm(size, eps) if config.use_sandwich_norm else nn.Identity() for _ in range(2)
        )

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        mixer = self.get_submodule(self.mixer_name)
        mixed = self.post_operator_norm(mixer(normed, batch))
        x, normed = add_and_norm(x, mixed, self.ffn_norm)
        return x, self.post_ffn_norm(self.feed_forward(normed))


class Model(CausalLM):
    """Short convolutions and attention, each followed by an MLP."""

    Config = Config
    text_config_of = ("lfm3_vl",)
    checkpoint_renames = (
        *lfm2.Model.checkpoint_renames,
        (r"\.self_attn\.gate_proj\.", ".self_attn.g_proj."),
    )

    def __init__(self, config: Config) -> None:
        ropes = {kind: Rope(rope, config.head_dim) for kind, rope in config.rope_parameters.items()}
        layers = [
            Layer(config, i, ropes.get(config.layer_type(i)))
            for i in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, config.norm_eps, ropes.values())
