"""MiMo-V2-Flash (arXiv 2601.02780): windows with sinks, scaled values, and experts."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.layers.scaled_values import ScaledValueAttention
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.mimo_v2_flash_names import ROTATED, in_one_spelling
from hybridrt.models.routing import deepseek_v3_routing

LayerType = Literal["full_attention", "sliding_attention"]


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
        return super().from_json(in_one_spelling(config), ignore)

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


class Model(CausalLM):
    """Attention, then an MLP or experts, as the two lists of the config say."""

    Config = Config
    checkpoint_renames = ((r"\.self_attn\.attention_sink_bias$", ".self_attn.sinks"),)
    ignored_tensors = (r"model\.mtp\..*",)

    def __init__(self, config: Config) -> None:
        ropes = {
            layer_type: Rope(rope, int(config.head_dim * (rope.partial_rotary_factor or ROTATED)))
            for layer_type, rope in config.rope_parameters.items()
        }
        scale = 1.0 if config.attention_value_scale is None else config.attention_value_scale

        def layer(layer_type: LayerType, mlp_type: str) -> nn.Module:
            attention = ScaledValueAttention(config.attention(layer_type), ropes[layer_type], scale)
            dense = mlp_type == "dense"
            mlp = MLP(config.hidden_size, config.intermediate_size) if dense else MoE(config.moe)
            return DecoderLayer(config.hidden_size, config.rms_norm_eps, attention, mlp)

        types = zip(config.layer_types, config.mlp_layer_types, strict=True)
        layers = [layer(*of_layer) for of_layer in types]
        super().__init__(config, layers, config.rms_norm_eps, ropes.values())
