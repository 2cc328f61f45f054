"""MiMo-V2-Flash (arXiv 2601.02780): windows with sinks, scaled values, and experts."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import Window
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.layers.rope import Rope, RopeConfig, rope_by_layer_type
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.routing import deepseek_v3_routing

LayerType = Literal["full_attention", "sliding_attention"]

_THETAS = (
    ("full_attention", "rope_theta", 5_000_000.0),
    ("sliding_attention", "swa_rope_theta", 10_000.0),
)
_ROTATED = 0.334


class Config(ModelConfig):
    """Keys of a MiMo-V2-Flash `config.json`, by today's names or by those of its publication."""

    intermediate_size: PositiveInt = 16_384
    moe_intermediate_size: PositiveInt = 2048
    num_attention_heads: PositiveInt = 64
    num_key_value_heads: PositiveInt = 4
    swa_num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt = 192
    v_head_dim: PositiveInt = 128
    attention_bias: bool = False
    attention_value_scale: float | None = 0.707
    sliding_window: PositiveInt = 129
    layer_types: list[LayerType]
    mlp_layer_types: list[Literal["dense", "sparse"]]
    n_routed_experts: PositiveInt = 256
    num_experts_per_tok: PositiveInt = 8
    n_group: PositiveInt = 1
    topk_group: PositiveInt = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float | None = 1.0
    n_shared_experts: None = None
    scoring_func: Literal["sigmoid"] = "sigmoid"
    topk_method: Literal["noaux_tc"] = "noaux_tc"
    add_swa_attention_sink_bias: Literal[True] = True
    add_full_attention_sink_bias: Literal[False] = False
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: float = 1e-5
    rope_parameters: dict[LayerType, RopeConfig]

    has_rope = False
    without_effect = ("attention_chunk_size", "num_nextn_predict_layers")

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model, and in the older spelling."""
        values = _in_todays_words(config)
        values["rope_parameters"] = _ropes(values)
        return super().from_json(values, ignore)

    def attention(self, layer_type: LayerType) -> AttentionConfig:
        """The sizes of attention in layers of a type."""
        slides = layer_type == "sliding_attention"
        heads = self.num_key_value_heads
        return AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=(self.swa_num_key_value_heads or 2 * heads) if slides else heads,
            head_dim=self.head_dim,
            head_dim_v=self.v_head_dim,
            attention_bias=self.attention_bias,
            output_bias=False,
            window=Window(self.sliding_window) if slides else None,
            sinks=slides,
        )

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return deepseek_v3_routing(self)


class ScaledAttention(Attention):
    """Attention to values times `value_scale`, as which they are cached."""

    def __init__(self, config: AttentionConfig, rope: Rope, value_scale: float) -> None:
        super().__init__(config, rope)
        self.value_scale = value_scale

    def _project(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super()._project(x, batch)
        return q, k, v * self.value_scale


class Model(CausalLM):
    """Attention, then an MLP or experts, as the two lists of the config say."""

    Config = Config
    checkpoint_renames = ((r"\.self_attn\.attention_sink_bias$", ".self_attn.sinks"),)
    ignored_tensors = (r"model\.mtp\..*",)

    def __init__(self, config: Config) -> None:
        ropes = {
            layer_type: Rope(rope, int(config.head_dim * (rope.partial_rotary_factor or _ROTATED)))
            for layer_type, rope in config.rope_parameters.items()
        }
        scale = 1.0 if config.attention_value_scale is None else config.attention_value_scale

        def layer(layer_type: LayerType, mlp_type: str) -> nn.Module:
            attention = ScaledAttention(config.attention(layer_type), ropes[layer_type], scale)
            dense = mlp_type == "dense"
            mlp = MLP(config.hidden_size, config.intermediate_size) if dense else MoE(config.moe)
            return DecoderLayer(config.hidden_size, config.rms_norm_eps, attention, mlp)

        types = zip(config.layer_types, config.mlp_layer_types, strict=True)
        layers = [layer(*of_layer) for of_layer in types]
        super().__init__(config, layers, config.rms_norm_eps, ropes.values())


def _in_todays_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the keys that transformers has for them.

    Raises:
        ValueError: layers with windows differ in a way that there are no keys for.
    """
    values, layers = dict(config), range(config.get("num_hidden_layers") or 0)
    if (eps := values.pop("layernorm_epsilon", None)) is not None:
        values["rms_norm_eps"] = eps
    if (window := values.pop("sliding_window_size", None)) is not None:
        values["sliding_window"] = window + 1  # it counted the tokens before
    slides = values.pop("hybrid_layer_pattern", None) or [i > 0 and (i + 1) % 6 for i in layers]
    values["layer_types"] = values.get("layer_types") or [
        "sliding_attention" if it_does else "full_attention" for it_does in slides
    ]
    routed = values.pop("moe_layer_freq", None) or [i > 0 for i in layers]
    values["mlp_layer_types"] = values.get("mlp_layer_types") or [
        "sparse" if it_is else "dense" for it_is in routed
    ]
    for key in ("layer_types", "mlp_layer_types"):
        if len(values[key]) != len(layers):
            raise ValueError(
                f"config.json: {key} has {len(values[key])} entries; should have "
                f"num_hidden_layers={len(layers)}"
            )
    for key in ("num_attention_heads", "head_dim", "v_head_dim"):
        given = values.pop(f"swa_{key}", None)
        if given not in (None, values.get(key)):
            raise ValueError(f"config.json: swa_{key}={given} should be {key}={values.get(key)}")
    return values


def _ropes(values: dict[str, Any]) -> dict[str, RopeConfig]:
    """The rotary settings of each type of layer; takes the older keys out of `values`."""
    part = values.pop("partial_rotary_factor", None) or _ROTATED
    defaults = {
        layer_type: {"rope_theta": values.pop(key, None) or theta, "partial_rotary_factor": part}
        for layer_type, key, theta in _THETAS
    }
    scaling = values.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) == "default":
        del values["rope_scaling"]
    return rope_by_layer_type(values, defaults)
