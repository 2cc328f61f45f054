"""MiniCPM3 (openbmb/MiniCPM3-4B): MLA with half-split rotary, and muP's constants.

Embeddings, residual branches and logits are multiplied as MiniCPM's are (arXiv 2404.06395,
section 3.1).
"""

import math
from typing import Literal

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.mla import MLA, MLAConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.norm import add_and_norm
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.stream import Hidden


class Config(ModelConfig):
    """Keys of a MiniCPM3 `config.json`. What is null of the constants has no effect."""

    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    q_lora_rank: PositiveInt | None = 768
    kv_lora_rank: PositiveInt = 256
    qk_nope_head_dim: PositiveInt = 64
    qk_rope_head_dim: PositiveInt = 32
    v_head_dim: PositiveInt | None = None
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 32_768
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-5
    rope_parameters: RopeConfig
    attention_bias: bool = False
    mlp_bias: bool = False
    scale_emb: float = 12
    scale_depth: float | None = 1.4
    dim_model_base: PositiveInt | None = 256

    without_effect = ("head_dim", "qk_head_dim", "num_key_value_heads")

    @property
    def mla(self) -> MLAConfig:
        """The attention's sizes."""
        return MLAConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim or self.hidden_size // self.num_attention_heads,
            attention_bias=self.attention_bias,
        )

    @property
    def residual_scale(self) -> float:
        """What each branch is multiplied by before it joins the stream."""
        if self.scale_depth is None:
            return 1.0
        return self.scale_depth / math.sqrt(self.num_hidden_layers)


class Layer(DecoderLayer):
    """`x + scale * branch(norm(x))`, for attention and then for the MLP."""

    def __init__(self, config: Config, self_attn: nn.Module, mlp: nn.Module) -> None:
        super().__init__(config.hidden_size, config.rms_norm_eps, self_attn, mlp)
        self.scale = config.residual_scale

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        attended = self.self_attn(normed, batch)
        x, normed = add_and_norm(x, attended, self.post_attention_layernorm, self.scale)
        return x, self.mlp(normed)


class Model(CausalLM):
    """MLA and SwiGLU in every layer."""

    Config = Config

    def __init__(self, config: Config) -> None:
        rope = Rope(config.rope_parameters, config.qk_rope_head_dim)
        layers = [
            Layer(
                config,
                MLA(config.mla, rope),
                MLP(config.hidden_size, config.intermediate_size, config.mlp_bias),
            )
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, config.rms_norm_eps, [rope])
        self.embedding_scale = config.scale_emb
        self.logits_scale = (config.dim_model_base or config.hidden_size) / config.hidden_size

    def embed(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        """What goes into the first layer."""
        return super().embed(batch) * self.embedding_scale

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        """The logits behind these hidden states, in float32."""
        return super().logits(hidden * self.logits_scale)
