"""A.X-K2 (skt/A.X-K2): DeepSeek-V3.2 whose norms and whose attention are gated."""

from typing import Literal

from pydantic import PositiveInt, model_validator
from torch import nn

from hybridrt.layers.gated_sparse_mla import LatentGatedSparseMLA, LatentIndexer
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoE, MoEConfig, Router
from hybridrt.layers.norm import SelfGatedRMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.models import deepseek_v32
from hybridrt.models.deepseek_v32 import Layer, SelectingLM
from hybridrt.models.glm4_moe_lite import dense_by_type


class Config(deepseek_v32.Config):
    """Keys of an A.X-K2 `config.json`, with `mlp_layer_types` or the keys before them."""

    moe_intermediate_size: PositiveInt = 512
    q_lora_rank: PositiveInt = 384
    kv_lora_rank: PositiveInt = 128
    qk_nope_head_dim: PositiveInt = 64
    qk_rope_head_dim: PositiveInt = 32
    v_head_dim: PositiveInt = 64
    n_routed_experts: PositiveInt = 128
    first_k_dense_replace: int = 1
    moe_layer_freq: PositiveInt = 1
    n_group: PositiveInt | None = None
    topk_group: PositiveInt | None = None
    max_position_embeddings: PositiveInt = 131_072
    index_n_heads: PositiveInt = 16
    gated_norm_rank: PositiveInt = 16
    mlp_layer_types: list[Literal["dense", "sparse"]] | None = None

    @model_validator(mode="after")
    def _both_or_neither_of_the_groups(self) -> "Config":
        if (self.n_group is None) != (self.topk_group is None):
            raise ValueError(
                f"n_group={self.n_group} and topk_group={self.topk_group} should both be set, or "
                f"both be null"
            )
        return self

    def is_dense(self, index: int) -> bool:
        """Whether a layer has an MLP in place of experts."""
        if self.mlp_layer_types is None and index % self.moe_layer_freq:
            return True
        return dense_by_type(self.mlp_layer_types, self.first_k_dense_replace, index)

    def feed_forward(self, index: int) -> nn.Module:
        """What stands behind a layer's attention."""
        if self.is_dense(index):
            return MLP(self.hidden_size, self.intermediate_size)
        experts = MoE(self.moe)
        experts.gate = ZeroFillingRouter(self.moe)
        return experts

    def gated_norm(self) -> SelfGatedRMSNorm:
        """What stands before attention, and before experts."""
        return SelfGatedRMSNorm(self.hidden_size, self.rms_norm_eps, self.gated_norm_rank)


class ZeroFillingRouter(Router):
    """An expert outside the best groups counts as zero, which a negative bias can be below."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__(config)
        self.routing = self.routing._replace(outside=0.0)


class Model(SelectingLM):
    """Sparse MLA in every layer, and an MLP or experts as `mlp_layer_types` says."""

    Config = Config
    checkpoint_renames = (
        (r"layernorm\.(W_down|mlp\.fc1)\.", "layernorm.down."),
        (r"layernorm\.(W_up|mlp\.fc2)\.", "layernorm.up."),
        (r"\.q_gate_proj\.", ".q_b_proj."),
    )

    def __init__(self, config: Config) -> None:
        rope = Rope(config.rope_parameters, config.qk_rope_head_dim, config.rope_interleave)
        index_rope = config.index_rope(rope)
        layers: list[nn.Module] = []
        for i in range(config.num_hidden_layers):
            indexer = LatentIndexer(config.index, index_rope)
            attention = LatentGatedSparseMLA(config.mla, rope, indexer)
            mlp = config.feed_forward(i)
            layer = Layer(config.hidden_size, config.rms_norm_eps, attention, mlp)
            layer.input_layernorm = config.gated_norm()
            if not config.is_dense(i):
                layer.post_attention_layernorm = config.gated_norm()
            layers.append(layer)
        super().__init__(config, layers, config.rms_norm_eps, [rope, index_rope])
        # The layers behind the last predict further tokens, for drafts.
        self.ignored_tensors = (
            r".*\.inv_freq",
            *(rf"model\.layers\.{config.num_hidden_layers + i}\..*" for i in range(8)),
        )
