"""The config of DeepSeek-V4, in today's keys: what each layer is, and its sizes."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hybridrt.layers.compressed_attention import CompressedAttentionConfig
from hybridrt.layers.compressor import CompressorConfig
from hybridrt.layers.hyper_connections import HyperConnectionConfig
from hybridrt.layers.moe import MoEConfig
from hybridrt.layers.rope import RopeConfig
from hybridrt.models.config import ModelConfig
from hybridrt.models.deepseek_v4_names import Compressed, LayerType, in_one_spelling


class Config(ModelConfig):
    """Keys of a DeepSeek-V4 `config.json`. Its multi-token prediction layers are not used."""

    moe_intermediate_size: PositiveInt = 2048
    num_attention_heads: PositiveInt = 64
    num_key_value_heads: Literal[1] = 1
    head_dim: PositiveInt = 512
    q_lora_rank: PositiveInt = 1024
    o_groups: PositiveInt = 8
    o_lora_rank: PositiveInt = 1024
    sliding_window: PositiveInt = 128
    layer_types: list[LayerType]
    compress_rates: dict[Compressed, PositiveInt]
    index_n_heads: PositiveInt = 64
    index_head_dim: PositiveInt = 128
    index_topk: PositiveInt = 512
    mlp_layer_types: list[Literal["hash_moe", "moe"]]
    n_routed_experts: PositiveInt = 256
    n_shared_experts: Literal[1] = 1
    num_experts_per_tok: PositiveInt = 6
    scoring_func: Literal["sqrtsoftplus"] = "sqrtsoftplus"
    topk_method: Literal["noaux_tc"] = "noaux_tc"
    norm_topk_prob: Literal[True] = True
    routed_scaling_factor: float = 1.5
    swiglu_limit: PositiveFloat = 10.0
    hc_mult: PositiveInt = 4
    hc_sinkhorn_iters: PositiveInt = 20
    hc_eps: float = Field(1e-6, ge=0)
    hidden_act: Literal["silu"] = "silu"
    rms_norm_eps: PositiveFloat = 1e-6
    max_position_embeddings: PositiveInt = 1_048_576
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    expert_dtype: Literal["fp8", "fp4"] | None = None  # as stored; loading sees it by itself
    partial_rotary_factor: PositiveFloat
    rope_parameters: dict[Literal["main", "compress"], RopeConfig]

    has_rope = False
    without_effect = (
        *("qk_rope_head_dim", "rope_theta", "rope_scaling"),  # read in other keys
        *("num_nextn_predict_layers", "dspark_block_size", "dspark_markov_rank"),  # of drafts
        *("dspark_noise_token_id", "dspark_target_layer_ids"),
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> "Config":
        """The config, checked; what the releases say in other keys is put into today's."""
        read = super().from_json(in_one_spelling(config), ignore)
        assert isinstance(read, cls)
        return read

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        for key in ("layer_types", "mlp_layer_types"):
            if len(getattr(self, key)) != self.num_hidden_layers:
                raise ValueError(f"{key} should be of {self.num_hidden_layers} layers")
        rotated = self.rotated("compress")
        if max(rotated, self.rotated("main")) > self.head_dim or rotated > self.index_head_dim:
            raise ValueError(
                f"head_dim={self.head_dim} and index_head_dim={self.index_head_dim} should be at "
                f"least {rotated}, of which partial_rotary_factor says that they are rotated"
            )
        return self

    def rotated(self, label: Literal["main", "compress"]) -> int:
        """How many of a head's values are rotated."""
        return int(self.head_dim * (self.rope_parameters[label].partial_rotary_factor or 1.0))

    @property
    def attention(self) -> CompressedAttentionConfig:
        """Sizes of attention, whatever it attends to."""
        names = CompressedAttentionConfig.model_fields
        return CompressedAttentionConfig(**{name: getattr(self, name) for name in names})

    def compressor(self, layer_type: Compressed, head_dim: int) -> CompressorConfig:
        """Sizes of a compressor."""
        return CompressorConfig(
            hidden_size=self.hidden_size,
            head_dim=head_dim,
            rate=self.compress_rates[layer_type],
            overlaps=layer_type == "compressed_sparse_attention",
            rms_norm_eps=self.rms_norm_eps,
        )

    @property
    def streams(self) -> HyperConnectionConfig:
        """The sizes of the connections."""
        names = HyperConnectionConfig.model_fields.keys() - {"hc_magnitude"}
        return HyperConnectionConfig(**{name: getattr(self, name) for name in names})

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes; their routing is that of `hybridrt.layers.hash_moe`."""
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.n_routed_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            routed_scaling_factor=self.routed_scaling_factor,
            shared_intermediate_size=self.moe_intermediate_size,
        )
