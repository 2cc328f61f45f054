"""OLMo Hybrid (Ai2, 2026): Gated DeltaNet, attention as OLMo 2's in every fourth layer."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.norm import RMSNorm, add_and_norm
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models import olmo2
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.stream import Hidden, StreamLayer


class Config(ModelConfig):
    """Keys of an OLMo Hybrid `config.json`.

    A `rope_theta` of null, in `rope_parameters` or beside it, means no positions.
    """

    intermediate_size: PositiveInt = 11_008
    num_attention_heads: PositiveInt = 30
    num_key_value_heads: PositiveInt | None = None
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 65_536
    rms_norm_eps: float = 1e-6
    rope_parameters: RopeConfig | None
    attention_bias: bool = False
    layer_types: list[Literal["linear_attention", "full_attention"]] | None = None
    linear_num_key_heads: PositiveInt | None = None
    linear_num_value_heads: PositiveInt | None = None
    linear_key_head_dim: PositiveInt | None = None
    linear_value_head_dim: PositiveInt | None = None
    linear_conv_kernel_dim: PositiveInt = 4
    linear_allow_neg_eigval: bool = True

    # Of random weights.
    without_effect = (
        *("linear_a_log_min", "linear_a_log_max"),
        *("linear_dt_min", "linear_dt_max", "linear_dt_init_floor"),
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As `ModelConfig.from_json`."""
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if rope.get("rope_theta", config.get("rope_theta", 0)) is not None:
            return super().from_json(config, ignore)
        unrotated = super().from_json(config, {*ignore, "rope_scaling", "rope_parameters"})
        return unrotated.model_copy(update={"rope_parameters": None})

    def is_attention(self, index: int) -> bool:
        """Whether the layer is attention; else it is Gated DeltaNet."""
        if self.layer_types is not None:
            return self.layer_types[index] == "full_attention"
        return index % 4 == 3 or index + 1 == self.num_hidden_layers < 4

    def rope(self) -> Rope | None:
        """The rotary table of the attention layers."""
        rope = self.rope_parameters
        return None if rope is None else Rope(rope, self.attention.head_dim)

    @property
    def attention(self) -> AttentionConfig:
        """The attention layers' sizes."""
        heads = self.num_attention_heads
        return AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=heads,
            num_key_value_heads=self.num_key_value_heads or heads,
            head_dim=self.hidden_size // heads,
            attention_bias=self.attention_bias,
            qk_norm_eps=self.rms_norm_eps,
            qk_norm_over="heads",
        )

    @property
    def delta_net(self) -> GatedDeltaNetConfig:
        """The Gated DeltaNet layers' sizes."""
        key_heads = self.linear_num_key_heads or self.num_attention_heads
        key_dim = self.linear_key_head_dim or int(0.75 * self.hidden_size / key_heads)
        return GatedDeltaNetConfig(
            hidden_size=self.hidden_size,
            num_key_heads=key_heads,
            num_value_heads=self.linear_num_value_heads or self.num_attention_heads,
            key_head_dim=key_dim,
            value_head_dim=self.linear_value_head_dim or 2 * key_dim,
            conv_kernel=self.linear_conv_kernel_dim,
            norm_eps=1e-5,
            projections="apart",
            allow_neg_eigval=self.linear_allow_neg_eigval,
        )


class LinearLayer(StreamLayer):
    """Gated DeltaNet, then an MLP, each behind a norm and added to the stream."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps)
        self.linear_attn = GatedDeltaNet(config.delta_net)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = MLP(size, config.intermediate_size)

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        mixed = self.linear_attn(normed, batch)
        x, normed = add_and_norm(x, mixed, self.post_attention_layernorm)
        return x, self.mlp(normed)


class Model(CausalLM):
    """Gated DeltaNet behind norms; attention with norms behind it and its MLP."""

    Config = Config
    checkpoint_renames = (
        (r"\.attention_layer_norm\.", ".input_layernorm."),
        (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
        (r"\.linear_attn\.o_norm\.", ".linear_attn.norm."),
        (r"\.linear_attn\.o_proj\.", ".linear_attn.out_proj."),
    )

    def __init__(self, config: Config) -> None:
        rope, size, eps = config.rope(), config.hidden_size, config.rms_norm_eps

        def layer(index: int) -> nn.Module:
            if not config.is_attention(index):
                return LinearLayer(config)
            mlp = MLP(size, config.intermediate_size)
            return olmo2.Layer(size, eps, Attention(config.attention, rope), mlp, RMSNorm)

        layers = [layer(i) for i in range(config.num_hidden_layers)]
        super().__init__(config, layers, eps, [] if rope is None else [rope])
