"""Youtu-LLM (tencent/Youtu-LLM-2B): a dense model with DeepSeek-V3's attention."""

from typing import Literal

from pydantic import PositiveInt

from hybridrt.layers.mla import MLA, MLAConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer


class Config(ModelConfig):
    """Keys of a Youtu `config.json`."""

    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    q_lora_rank: PositiveInt | None = 1536
    kv_lora_rank: PositiveInt = 512
    qk_nope_head_dim: PositiveInt = 128
    qk_rope_head_dim: PositiveInt = 64
    v_head_dim: PositiveInt = 128
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 131_072
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6
    rope_parameters: RopeConfig
    rope_interleave: bool = True
    attention_bias: bool = False
    mlp_bias: Literal[False] = False

    without_effect = (
        "embedding_initializer_range",
        "head_dim",
        "num_key_value_heads",
        "qk_head_dim",
    )

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
            v_head_dim=self.v_head_dim,
            attention_bias=self.attention_bias,
        )


class Model(CausalLM):
    """MLA and SwiGLU in every layer."""

    Config = Config

    def __init__(self, config: Config) -> None:
        rope = Rope(config.rope_parameters, config.qk_rope_head_dim, config.rope_interleave)
        layers = [
            DecoderLayer(
                config.hidden_size,
                config.rms_norm_eps,
                MLA(config.mla, rope),
                MLP(config.hidden_size, config.intermediate_size),
            )
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, config.rms_norm_eps, [rope])
