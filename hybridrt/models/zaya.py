"""ZAYA1 (Zyphra, arXiv 2511.17127): compressed convolutional attention, one expert a token."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import Window
from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.cca import ConvolvedAttention
from hybridrt.layers.chained_moe import ChainedMoE, ChainedMoEConfig
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.residual_scale import ResidualScale
from hybridrt.layers.rope import Rope, RopeConfig, rope_by_layer_type
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig

LayerType = Literal["hybrid", "hybrid_sliding"]
_ROPES = {
    "hybrid": {"rope_theta": 5_000_000.0, "partial_rotary_factor": 0.5},
    "hybrid_sliding": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}


class Config(ModelConfig):
    """Keys of a ZAYA1 `config.json`."""

    num_attention_heads: PositiveInt = 8
    num_key_value_heads: PositiveInt = 2
    head_dim: PositiveInt = 128
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    rope_parameters: dict[str, RopeConfig]
    sliding_window: PositiveInt | None = None
    moe_intermediate_size: PositiveInt = 2048
    num_experts_per_tok: Literal[1] = 1
    num_experts: PositiveInt = 16
    layer_types: list[LayerType] | None = None
    attention_bias: bool = False
    lm_head_bias: bool = False
    router_hidden_size: PositiveInt = 256
    cca_time0: PositiveInt = 2
    cca_time1: PositiveInt = 2

    has_rope = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As `ModelConfig.from_json`. Published files have a `rope_type` too many."""
        given = dict(config.get("rope_parameters") or {})
        given.pop("rope_type", None)
        ropes = rope_by_layer_type({**config, "rope_parameters": given}, _ROPES)
        return super().from_json({**config, "rope_parameters": ropes}, ignore)

    def layer_type(self, index: int) -> LayerType:
        """Whether a layer sees all tokens or a window."""
        return "hybrid" if self.layer_types is None else self.layer_types[index]

    def attention(self, index: int) -> ConvolvedAttention:
        """A layer's attention."""
        window = self.sliding_window if self.layer_type(index) == "hybrid_sliding" else None
        if window is None and self.layer_type(index) == "hybrid_sliding":
            raise ValueError(f"sliding_window=None should be a number: layer {index} is sliding")
        sizes = AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            attention_bias=self.attention_bias,
            window=None if window is None else Window(window),
        )
        rope = self.rope_parameters[self.layer_type(index)]
        share = 1.0 if rope.partial_rotary_factor is None else rope.partial_rotary_factor
        dim = self.head_dim if rope.rope_type == "proportional" else int(self.head_dim * share)
        return ConvolvedAttention(sizes, Rope(rope, dim), (self.cca_time0, self.cca_time1))

    @property
    def moe(self) -> ChainedMoEConfig:
        """The experts' sizes and their routers'."""
        return ChainedMoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.moe_intermediate_size,
            num_experts=self.num_experts,
            router_hidden_size=self.router_hidden_size,
            norm_eps=self.rms_norm_eps,
        )


class Layer(nn.Module):
    """Attention, then experts, each behind a norm, added to the stream with weights."""

    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps)
        self.self_attn = config.attention(index)
        self.post_attention_residual_scale = ResidualScale(size)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = ChainedMoE(config.moe, first=index == 0)
        self.post_mlp_residual_scale = ResidualScale(size)

    def forward(
        self,
        x: Float[Tensor, "tokens hidden"],
        seen: Float[Tensor, "tokens size"] | None,
        batch: ForwardBatch,
    ) -> tuple[Float[Tensor, "tokens hidden"], Float[Tensor, "tokens size"]]:
        out = self.self_attn(self.input_layernorm(x), batch)
        x = self.post_attention_residual_scale(out, x)
        out, states = self.mlp(self.post_attention_layernorm(x), seen)
        return self.post_mlp_residual_scale(out, x), states


class Model(CausalLM):
    """Attention and experts, layer by layer; routers hand each other what they see."""

    Config = Config
    checkpoint_renames = (
        (r"\.qkv_proj\.", ".cca."),
        (r"\.router_mlp\.", "."),
        (r"^model\.input_hidden_states_(scale|bias)$", r"input_\1"),
    )

    def __init__(self, config: Config) -> None:
        layers = [Layer(config, i) for i in range(config.num_hidden_layers)]
        ropes = [layer.self_attn.rope for layer in layers if layer.self_attn.rope is not None]
        super().__init__(config, layers, config.rms_norm_eps, ropes, float32_residual=True)
        self.input_scale, self.input_bias = (
            nn.Parameter(torch.empty(config.hidden_size), requires_grad=False) for _ in range(2)
        )
        if config.lm_head_bias:
            bias = torch.empty(config.vocab_size)
            self.lm_head.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        """The last hidden state of every token in the batch."""
        x = ((self.embed(batch) + self.input_bias) * self.input_scale).float()
        seen = None
        for layer in self.model.layers:
            x, seen = layer(x, seen, batch)
        return self.model.norm(x)
