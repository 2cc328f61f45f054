"""Keys of the `text_config` of an Inkling `config.json`; see `inkling_mm_model`."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.moe import MoEConfig
from hybridrt.layers.relative_attention import LogGrowth, RelativeAttention, RelativeConfig
from hybridrt.layers.sink_moe import ScaledMLP, SinkMoE
from hybridrt.models.config import ModelConfig

_TODAYS_NAMES = {
    "embedding_multiplier": "logits_mup_width_multiplier",
    "model_max_length": "max_position_embeddings",
    "num_local_experts": "n_routed_experts",
    "sconv_kernel_size": "conv_kernel_size",
    "sliding_window": "sliding_window_size",
}


class Config(ModelConfig):
    """Keys of the `text_config` of an Inkling `config.json`, as published or as transformers'."""

    unpadded_vocab_size: PositiveInt | None = None
    num_attention_heads: PositiveInt = 64
    num_key_value_heads: PositiveInt = 8
    head_dim: PositiveInt = 128
    swa_num_attention_heads: PositiveInt = 64
    swa_num_key_value_heads: PositiveInt = 16
    swa_head_dim: PositiveInt = 128
    sliding_window_size: PositiveInt = 512
    d_rel: PositiveInt = 16
    rel_extent: PositiveInt = 1024
    log_scaling_n_floor: PositiveInt | None = None
    log_scaling_alpha: float = 0.1
    layer_types: list[Literal["hybrid", "hybrid_sliding"]]
    mlp_layer_types: list[Literal["dense", "sparse"]]
    conv_kernel_size: int = Field(4, ge=2)
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: float = 1e-6
    hidden_act: Literal["silu"] = "silu"
    intermediate_size: PositiveInt = 24_576
    moe_intermediate_size: PositiveInt = 3072
    n_routed_experts: PositiveInt = 256
    num_experts_per_tok: PositiveInt = 6
    n_shared_experts: PositiveInt = 2
    route_scale: float = 8.0
    logits_mup_width_multiplier: PositiveFloat = 24.0
    tie_word_embeddings: Literal[False] = False
    # Parts that every published model has, or none.
    gate_activation: Literal["sigmoid"] = "sigmoid"
    norm_after_topk: Literal[True] = True
    shared_expert_sink: Literal[True] = True
    use_embed_norm: Literal[True] = True
    use_gate_bias: Literal[True] = True
    use_global_scale: Literal[True] = True
    use_sconv: Literal[True] = True
    q_bias: Literal[False] = False
    o_bias: Literal[False] = False

    has_rope = False
    # Of layers that predict further tokens, and of sizes that follow from others.
    without_effect = (
        *("chain_hidden_post_norm", "mtp_hidden_states_first", "mtp_local_layer_ids"),
        *("num_mtp_layers", "number_of_conv_states", "rms_norm_eps_moe_gate"),
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As `ModelConfig.from_json`, by today's names."""
        values = {_TODAYS_NAMES.get(key, key): value for key, value in config.items()}
        layers = range(values.get("num_hidden_layers") or 0)
        local, dense = values.pop("local_layer_ids", None), values.pop("dense_mlp_idx", None) or 0
        if values.get("layer_types") is None:
            slides = [i for i in layers if (i + 1) % 6] if local is None else local
            values["layer_types"] = ["hybrid_sliding" if i in slides else "hybrid" for i in layers]
        if values.get("mlp_layer_types") is None:
            values["mlp_layer_types"] = ["dense" if i < dense else "sparse" for i in layers]
        if (wide := values.pop("dense_intermediate_size", None)) is not None:
            values["moe_intermediate_size"] = values.get("intermediate_size")  # the experts', then
            values["intermediate_size"] = wide
        return super().from_json(values, ignore)

    def attention(self, index: int) -> RelativeAttention:
        """A layer's attention; layers with windows have sizes of their own."""
        slides = self.layer_types[index] == "hybrid_sliding"
        dim = self.swa_head_dim if slides else self.head_dim
        growth = None
        if self.log_scaling_n_floor is not None and not slides:
            growth = LogGrowth(alpha=self.log_scaling_alpha, floor=self.log_scaling_n_floor)
        sizes = AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.swa_num_attention_heads
            if slides
            else self.num_attention_heads,
            num_key_value_heads=self.swa_num_key_value_heads
            if slides
            else self.num_key_value_heads,
            head_dim=dim,
            qk_norm_eps=self.rms_norm_eps,
            window=Window(self.sliding_window_size) if slides else None,
            scale=1 / dim,
        )
        relative = RelativeConfig(
            d_rel=self.d_rel,
            extent=self.sliding_window_size if slides else self.rel_extent,
            conv_kernel=self.conv_kernel_size,
            growth=growth,
        )
        return RelativeAttention(sizes, relative)

    def feed_forward(self, index: int) -> nn.Module:
        """An MLP or experts."""
        if self.mlp_layer_types[index] == "dense":
            return ScaledMLP(self.hidden_size, self.intermediate_size)
        sizes = MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.n_routed_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            scoring_func="sigmoid",
            routed_scaling_factor=self.route_scale,
            correction_bias=True,
        )
        return SinkMoE(sizes, self.n_shared_experts)
