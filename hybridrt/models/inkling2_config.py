"""Keys of the `text_config` of an Inkling 2 `config.json`; see `inkling2`."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.bent_moe import BentMoE
from hybridrt.layers.clipped_attention import ClipConfig, ClippedAttention
from hybridrt.layers.moe import MoEConfig
from hybridrt.layers.relative_attention import LogGrowth, RelativeConfig
from hybridrt.models.config import ModelConfig

_TODAYS_NAMES = {
    "intermediate_size": "moe_intermediate_size",
    "model_max_length": "max_position_embeddings",
    "num_local_experts": "n_routed_experts",
    "routed_scaling_factor": "route_scale",
    "sconv_kernel_size": "conv_kernel_size",
    "sliding_window": "sliding_window_size",
}


class Config(ModelConfig):
    """Keys of the `text_config` of an Inkling 2 `config.json`."""

    unpadded_vocab_size: PositiveInt = 200_058
    num_attention_heads: PositiveInt = 48
    num_key_value_heads: PositiveInt = 8
    head_dim: PositiveInt = 128
    swa_num_attention_heads: PositiveInt = 48
    swa_num_key_value_heads: PositiveInt = 8
    swa_head_dim: PositiveInt = 128
    sliding_window_size: PositiveInt = 1024
    d_rel: PositiveInt = 16
    rel_extent: PositiveInt = 1024
    log_scaling_n_floor: PositiveInt = 128_000
    log_scaling_alpha: float = 0.1
    qk_l2_clip_threshold: PositiveFloat = 22.627416997969522
    rel_l2_clip_threshold: PositiveFloat = 8.0
    layer_types: list[Literal["hybrid", "hybrid_sliding"]]
    n_layers_per_attn_res_block: PositiveInt = 6
    conv_kernel_size: int = Field(4, ge=2)
    max_position_embeddings: PositiveInt = 1_048_576
    rms_norm_eps: float = 1e-6
    hidden_act: Literal["silu"] = "silu"
    moe_intermediate_size: PositiveInt = 2304
    n_routed_experts: PositiveInt = 384
    num_experts_per_tok: PositiveInt = 8
    route_scale: float = 8.0
    scoring_func: Literal["sigmoid"] = "sigmoid"
    mlp_gate_softcap: PositiveFloat = 4.0
    mlp_up_softcap: PositiveFloat = 25.0
    final_logit_softcapping: PositiveFloat = 30.0
    tie_word_embeddings: Literal[False] = False

    has_rope = False
    without_effect = ("number_of_conv_states",)

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As `ModelConfig.from_json`, by today's names."""
        values = {_TODAYS_NAMES.get(key, key): value for key, value in config.items()}
        if values.get("layer_types") is None:
            layers = range(values.get("num_hidden_layers") or 0)
            kinds = ("hybrid", "hybrid_sliding")
            values["layer_types"] = [kinds[(i + 1) % 6 > 0] for i in layers]
        return super().from_json(values, ignore)

    def slides(self, index: int) -> bool:
        """Whether a layer's attention has a window."""
        return self.layer_types[index] == "hybrid_sliding"

    def attention(self, index: int) -> ClippedAttention:
        """A layer's attention; layers with windows have sizes of their own."""
        slides, queries, keys = self.slides(index), self.num_attention_heads, self.head_dim
        sizes = AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.swa_num_attention_heads if slides else queries,
            num_key_value_heads=self.swa_num_key_value_heads
            if slides
            else self.num_key_value_heads,
            head_dim=self.swa_head_dim if slides else keys,
            window=Window(self.sliding_window_size) if slides else None,
        )
        growth = LogGrowth(alpha=self.log_scaling_alpha, floor=self.log_scaling_n_floor)
        relative = RelativeConfig(
            d_rel=self.d_rel,
            extent=self.sliding_window_size if slides else self.rel_extent,
            growth=None if slides else growth,
        )
        clips = ClipConfig(
            qk_threshold=self.qk_l2_clip_threshold,
            relative_threshold=self.rel_l2_clip_threshold,
            value_norm_eps=self.rms_norm_eps,
            conv_kernel=self.conv_kernel_size,
            dynamic_conv=not slides,
        )
        return ClippedAttention(sizes, relative, clips)

    def experts(self) -> BentMoE:
        """A layer's experts."""
        sizes = MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.n_routed_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            scoring_func="sigmoid",
            routed_scaling_factor=self.route_scale,
            float32_router=True,
            correction_bias=True,
        )
        return BentMoE(sizes, self.mlp_gate_softcap, self.mlp_up_softcap)
