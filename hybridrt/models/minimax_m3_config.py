"""The config of MiniMax-M3, by the keys of transformers and of the released file."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import nn

from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.clamped_moe import ClampedHalvesMLP, ClampedHalvesMoE, ClampedMoEConfig
from hybridrt.layers.indexed_attention import IndexedAttention
from hybridrt.layers.norm import OffsetRMSNorm
from hybridrt.layers.peak_indexer import PeakIndexer, PeakIndexerConfig
from hybridrt.layers.rope import Rope
from hybridrt.models import minimax_m2
from hybridrt.models.checks import check_one_for_each_layer
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer

_OF_SPARSE_ATTENTION = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}
"""What `sparse_attention_config` of the released file calls keys of today."""


class Config(minimax_m2.Config):
    """Keys of a MiniMax-M3 `text_config`. Layers without a type are full attention and experts."""

    num_key_value_heads: PositiveInt | None = 4
    max_position_embeddings: PositiveInt = 524_288
    hidden_act: Literal["silu", "swigluoai"] = "silu"
    intermediate_size: PositiveInt = 3072
    num_local_experts: PositiveInt | None = 128
    num_experts_per_tok: PositiveInt = 4
    routed_scaling_factor: float = 2.0
    dense_intermediate_size: PositiveInt = 12_288
    shared_intermediate_size: PositiveInt = 3072  # pyright: ignore[reportIncompatibleVariableOverride]
    swiglu_alpha: PositiveFloat = 1.702
    swiglu_limit: PositiveFloat = 7.0
    layer_types: list[Literal["full_attention", "minimax_m3_sparse"]] | None = None
    mlp_layer_types: list[Literal["dense", "sparse"]] | None = None
    index_n_heads: PositiveInt = 4
    index_head_dim: PositiveInt = 128
    index_block_size: PositiveInt = 128
    index_topk_blocks: PositiveInt = 16
    index_local_blocks: int = Field(1, ge=0)
    qk_norm_type: Literal["per_head"] = "per_head"  # pyright: ignore[reportIncompatibleVariableOverride]
    use_gemma_norm: Literal[True] = True
    attention_output_gate: Literal[False] = False
    n_shared_experts: Literal[1] = 1
    use_sparse_attention: Literal[True] = True
    sparse_score_type: Literal["max"] = "max"
    sparse_init_block: Literal[0] = 0

    norm_class = OffsetRMSNorm
    # An indexer that has values has tensors that are refused.
    without_effect = (
        *minimax_m2.Config.without_effect,
        "num_nextn_predict_layers",
        "sparse_disable_index_value",
    )

    @model_validator(mode="after")
    def _types_of_every_layer(self) -> "Config":
        types = {"layer_types": self.layer_types, "mlp_layer_types": self.mlp_layer_types}
        check_one_for_each_layer(self.num_hidden_layers, **types)
        rotated, size = self.rotary_dim, self.attention(0).head_dim
        if rotated is not None and rotated < size and rotated != self.rope().dim:
            raise ValueError(
                f"rotary_dim={rotated} should be {self.rope().dim}, as partial_rotary_factor of "
                f"rope_parameters says"
            )
        return self

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model, by today's keys or those of the released file."""
        values = dict(config)
        sparse = dict(values.pop("sparse_attention_config", None) or {})
        values |= {
            new: sparse.pop(old) for old, new in _OF_SPARSE_ATTENTION.items() if old in sparse
        }
        flags = sparse.pop("sparse_attention_freq", None)
        if values.get("layer_types") is None and flags is not None:
            names = ("full_attention", "minimax_m3_sparse")
            values["layer_types"] = [names[bool(flag)] for flag in flags]
        flags = values.pop("moe_layer_freq", None)
        if values.get("mlp_layer_types") is None and flags is not None:
            values["mlp_layer_types"] = [("dense", "sparse")[bool(flag)] for flag in flags]
        return super().from_json({**values, **sparse}, ignore)

    @classmethod
    def rotated_part(cls, config: Mapping[str, Any]) -> float | None:
        """By `partial_rotary_factor` alone."""
        return config.get("partial_rotary_factor")

    def attention(self, index: int) -> AttentionConfig:
        """Each head's queries and keys are normed."""
        changes = {"qk_norm_over": "head", "qk_norm_offset": True}
        return super().attention(index).model_copy(update=changes)

    def feed_forward(self, index: int) -> nn.Module:
        """Experts and a shared one, or an MLP."""
        own: dict[str, Any] = {
            "shared_intermediate_size": self.shared_intermediate_size,
            "routed_scaling_factor": self.routed_scaling_factor,
            "topk_norm_eps": 0.0,
            "swiglu_alpha": self.swiglu_alpha,
            "swiglu_limit": self.swiglu_limit,
        }
        sizes = ClampedMoEConfig(**{**self.moe.model_dump(), **own})
        if self.mlp_layer_types is not None and self.mlp_layer_types[index] == "dense":
            return ClampedHalvesMLP(sizes, self.dense_intermediate_size)
        return ClampedHalvesMoE(sizes)

    def layer(self, index: int, rope: Rope) -> nn.Module:
        """Attention, with an indexer if its type says so, and a feed-forward layer."""
        sizes = self.attention(index)
        attention = Attention(sizes, rope)
        if self.layer_types is not None and self.layer_types[index] == "minimax_m3_sparse":
            names = (key for key in PeakIndexerConfig.model_fields if hasattr(self, key))
            values: dict[str, Any] = {key: getattr(self, key) for key in names}
            values["num_key_value_heads"] = sizes.num_key_value_heads
            indexer = PeakIndexer(PeakIndexerConfig(**values, norm_eps=self.eps), rope)
            attention = IndexedAttention(sizes, rope, indexer)
        parts = (attention, self.feed_forward(index), OffsetRMSNorm)
        return DecoderLayer(self.hidden_size, self.eps, *parts)
