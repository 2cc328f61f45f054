"""Hy4 (tencent/Hy4-preview): GLM-5's sparse attention with gates and sinks, on several streams.

The streams are hyper-connections' (arXiv 2409.19606) that don't mix with one another.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int32
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.gated_sparse_mla import GatedSparseMLA, TailRotatedIndexer
from hybridrt.layers.hyper_connections import (
    HyperConnection,
    HyperConnectionConfig,
    HyperHead,
    open_streams,
)
from hybridrt.layers.limited_moe import LimitedMoE
from hybridrt.layers.mlp import MLP
from hybridrt.layers.rope import Rope
from hybridrt.models import deepseek_v32
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.decoder import DecoderLayer


class Config(deepseek_v32.Config):
    """Keys of a Hy4 `config.json`."""

    moe_intermediate_size: PositiveInt = 768
    qk_nope_head_dim: PositiveInt = 192
    v_head_dim: PositiveInt = 256
    n_shared_experts: PositiveInt = 1
    first_k_dense_replace: Literal[1] = 1
    n_group: PositiveInt | None = 1
    topk_group: PositiveInt | None = 1
    routed_scaling_factor: float = 2.827
    max_position_embeddings: PositiveInt = 262_144
    rms_norm_eps: float = 1e-5
    rope_interleave: Literal[False] = False
    index_n_heads: PositiveInt = 16
    indexer_types: list[Literal["full", "shared"]] | None = None
    hc_mult: PositiveInt = 4
    hc_magnitude: float = 2.0
    hc_eps: float = Field(1e-6, ge=0)
    swiglu_limit: PositiveFloat = 10.0

    without_effect = (*deepseek_v32.Config.without_effect, "learnable_sink_init")

    @model_validator(mode="after")
    def _first_layer_selects(self) -> "Config":
        types, count = self.indexer_types, self.num_hidden_layers
        if types is not None and (len(types) < count or types[0] != "full"):
            raise ValueError(f"indexer_types={types} should be of {count} layers, the first 'full'")
        return self

    def has_indexer(self, index: int) -> bool:
        """Whether a layer selects its own tokens; else it takes those of the layer before."""
        if self.indexer_types is None:
            return index == 0 or (index - 1) % 4 == 0
        return self.indexer_types[index] == "full"

    def feed_forward(self, index: int) -> nn.Module:
        """What stands behind a layer's attention. Only routed experts are limited."""
        if self.is_dense(index):
            return MLP(self.hidden_size, self.intermediate_size)
        return LimitedMoE(self.moe, self.swiglu_limit, limits_shared=False)

    @property
    def streams(self) -> HyperConnectionConfig:
        """The sizes of the connections."""
        return HyperConnectionConfig(
            hidden_size=self.hidden_size,
            rms_norm_eps=self.rms_norm_eps,
            hc_mult=self.hc_mult,
            hc_eps=self.hc_eps,
            hc_magnitude=self.hc_magnitude,
        )


class Layer(DecoderLayer):
    """A decoder layer on several streams."""

    self_attn: GatedSparseMLA

    def __init__(self, config: Config, attention: GatedSparseMLA, mlp: nn.Module) -> None:
        super().__init__(config.hidden_size, config.rms_norm_eps, attention, mlp)
        self.attn_hc = HyperConnection(config.streams)
        self.ffn_hc = HyperConnection(config.streams)

    def forward_selecting(
        self,
        streams: Float[Tensor, "tokens streams hidden"],
        batch: ForwardBatch,
        selected: Int32[Tensor, "tokens top_k"] | None,
    ) -> tuple[Float[Tensor, "tokens streams hidden"], Int32[Tensor, "tokens top_k"]]:
        """The streams behind the layer, and the tokens selected last."""
        x, gates = self.attn_hc(streams)
        normed = self.input_layernorm(x)
        attended, selected = self.self_attn.select_and_attend(normed, batch, selected)
        streams = gates.add(streams, attended)
        x, gates = self.ffn_hc(streams)
        return gates.add(streams, self.mlp(self.post_attention_layernorm(x))), selected


class Model(CausalLM):
    """Sparse MLA in every layer, and an MLP or experts as `mlp_layer_types` says."""

    Config = Config
    ignored_tensors = (r"model\.mtp_layers\..*",)
    checkpoint_renames = (
        (r"\.hc_pre\.hc_", ".hc_"),
        (r"\.hc_attn_layer\.hc_", ".attn_hc."),
        (r"\.hc_mlp_layer\.hc_", ".ffn_hc."),
        (r"\.hc_head_(fn|base|scale)$", r".hc_\1"),
        (r"\.learnable_sink_param$", ".sinks"),
        (r"\.linear_gate\.", ".gate_proj."),
    )

    def __init__(self, config: Config) -> None:
        rope = Rope(config.rope_parameters, config.qk_rope_head_dim)
        layers: list[nn.Module] = []
        for i in range(config.num_hidden_layers):
            indexer = None
            if config.has_indexer(i):
                indexer = TailRotatedIndexer(config.index, rope, config.rms_norm_eps)
            attention = GatedSparseMLA(config.mla, rope, indexer)
            layers.append(Layer(config, attention, config.feed_forward(i)))
        super().__init__(config, layers, config.rms_norm_eps, [rope])
        self.model.hc_head = HyperHead(config.streams)
        self.num_streams = config.hc_mult
        if not config.tie_word_embeddings:
            weight = torch.empty_like(self.lm_head.weight, dtype=torch.float32)
            self.lm_head.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        """The last hidden state of every token in the batch."""
        streams, selected = open_streams(self.embed(batch), self.num_streams), None
        for layer in self.model.layers:
            assert isinstance(layer, Layer)
            streams, selected = layer.forward_selecting(streams, batch, selected)
        head = self.model.hc_head
        assert isinstance(head, HyperHead)
        return self.model.norm(head(streams))

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        """The logits behind these hidden states, in float32."""
        return super().logits(hidden.to(self.lm_head.weight.dtype))
