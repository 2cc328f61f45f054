"""Keys of the `text_config` of a GLM-5.3-Flash `config.json`; see `glm5_next`."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import Field, NegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import nn

from hybridrt.layers.hyper_connections import HyperConnectionConfig
from hybridrt.layers.kda import KimiDeltaAttention, KimiDeltaAttentionConfig
from hybridrt.layers.limited_moe import LimitedMLP, LimitedMoE
from hybridrt.layers.mla import MLAConfig
from hybridrt.layers.pooled_sparse_mla import PooledIndexer, PooledSparseMLA
from hybridrt.models import glm_moe_dsa
from hybridrt.models.config import ModelConfig

LayerType = Literal["linear_attention", "indexed_attention", "full_attention"]

_BOUND = -5.0
_INNER_NAMES = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
    "gate_lower_bound": "linear_lower_bound",
}

_LISTS_OF_LAYERS = ("kda_layers", "full_attn_layers")
_FIRST_DENSE = "first_k_dense_replace"


class Config(glm_moe_dsa.Config):
    """Keys of the `text_config` of a GLM-5.3-Flash `config.json`."""

    q_lora_rank: PositiveInt = 1536
    qk_nope_head_dim: PositiveInt = 256
    qk_rope_head_dim: Literal[0] = 0
    n_routed_experts: PositiveInt = 288
    max_position_embeddings: PositiveInt = 1_048_576
    rope_parameters: None = None
    layer_types: list[LayerType] = Field(default_factory=list)
    index_kpool: PositiveInt = 16
    index_kpool_always_select_tail: Literal[True] = True
    mla_use_nope: Literal[True] = True
    linear_head_dim: PositiveInt = 128
    linear_num_heads: PositiveInt = 64
    linear_conv_kernel_dim: int = Field(4, ge=2)
    linear_lower_bound: NegativeFloat | None = _BOUND
    swiglu_limit: PositiveFloat = 10.0
    hc_mult: PositiveInt = 4
    hc_eps: float = 1e-6
    hc_sinkhorn_iters: PositiveInt = 20

    has_rope = False
    # There are no positions. How far prediction of further tokens goes is not asked.
    without_effect = (
        *("head_dim", "qk_head_dim", "partial_rotary_factor", "rope_theta", "rope_scaling"),
        *("num_nextn_predict_layers", "index_share_for_mtp_iteration"),
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As `ModelConfig.from_json`; `linear_attn_config` comes before the keys beside it."""
        values = dict(config)
        values.pop("rope_parameters", None)
        values.setdefault("linear_lower_bound", _BOUND)
        if (inner := values.pop("linear_attn_config", None)) is not None:
            inner = {_INNER_NAMES.get(key, key): value for key, value in inner.items()}
            is_safe = inner.pop("safe_gate", True)
            if values.get("layer_types") is not None:  # which says the same
                inner = {key: inner[key] for key in inner if key not in _LISTS_OF_LAYERS}
            values.update(inner)
            if is_safe and values["linear_lower_bound"] is None:
                values["linear_lower_bound"] = _BOUND
        layers, dense = range(values.get("num_hidden_layers") or 0), values.get(_FIRST_DENSE, 3)
        if values.get("layer_types") is None:
            values["layer_types"] = [
                "indexed_attention" if i % 4 == 3 else "linear_attention" for i in layers
            ]
        if values.get("mlp_layer_types") is None:
            values["mlp_layer_types"] = ["dense" if i < dense else "sparse" for i in layers]
        return super().from_json(values, ignore)

    @model_validator(mode="after")
    def _every_layer_has_a_selection(self) -> "Config":
        count = self.num_hidden_layers
        for key in ("layer_types", "mlp_layer_types", "indexers"):
            if len(types := getattr(self, key)) < count:
                raise ValueError(f"{key}={types} should be of {count} layers")
        first = [i for i in range(count) if self.is_attention(i)][:1]
        if any(not self.has_indexer(i) for i in first):
            raise ValueError(f"indexer_types[{first[0]}] should be 'full': no layer before selects")
        return self

    def is_attention(self, index: int) -> bool:
        """Whether the layer is MLA; else it is linear attention."""
        return self.layer_types[index] != "linear_attention"

    @property
    def mla(self) -> MLAConfig:
        """The attention's sizes."""
        return super().mla.model_copy(update={"latent_norm_eps": self.rms_norm_eps})

    def mixer(self, index: int) -> nn.Module:
        """MLA, which selects or takes what was selected last, or KDA."""
        if self.is_attention(index):
            selects = self.has_indexer(index)
            indexer = PooledIndexer(self.index, self.index_kpool) if selects else None
            return PooledSparseMLA(self.mla, indexer)
        kda = KimiDeltaAttentionConfig(
            hidden_size=self.hidden_size,
            num_heads=self.linear_num_heads,
            head_dim=self.linear_head_dim,
            conv_kernel=self.linear_conv_kernel_dim,
            norm_eps=self.rms_norm_eps,
            flat_a_log=True,
            decay_bound=self.linear_lower_bound,
        )
        return KimiDeltaAttention(kda)

    def feed_forward(self, index: int) -> nn.Module:
        """What stands behind a layer's mixer."""
        if self.is_dense(index):
            return LimitedMLP(self.hidden_size, self.intermediate_size, self.swiglu_limit)
        return LimitedMoE(self.moe, self.swiglu_limit)

    @property
    def streams(self) -> HyperConnectionConfig:
        """The hyper-connections' sizes."""
        return HyperConnectionConfig(
            hidden_size=self.hidden_size,
            rms_norm_eps=self.rms_norm_eps,
            hc_mult=self.hc_mult,
            hc_eps=self.hc_eps,
            hc_sinkhorn_iters=self.hc_sinkhorn_iters,
        )
