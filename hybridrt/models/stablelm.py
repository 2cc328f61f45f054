"""StableLM 2 (arXiv 2402.17834): Llama with LayerNorm, a quarter of whose heads is rotated."""

from typing import Literal

from pydantic import PositiveInt
from torch import nn

from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.norm import LayerNorm
from hybridrt.layers.rope import Rope
from hybridrt.models.decoder import ParallelLayer
from hybridrt.models.transformer import StackConfig, TransformerLM


class Config(StackConfig):
    """Keys of a StableLM `config.json`. Normed queries and keys are refused."""

    num_key_value_heads: PositiveInt | None = 32
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 4096
    layer_norm_eps: float = 1e-5
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    use_qkv_bias: bool = False
    qk_layernorm: Literal[False] = False
    use_parallel_residual: bool = False

    has_partial_rope = True
    default_partial_rotary_factor = 0.25
    norm_class = LayerNorm

    @property
    def eps(self) -> float:
        return self.layer_norm_eps

    def attention(self, index: int) -> AttentionConfig:
        """The output's projection has no bias."""
        changes = {"attention_bias": self.use_qkv_bias, "output_bias": False}
        return super().attention(index).model_copy(update=changes)

    def layer(self, index: int, rope: Rope) -> nn.Module:
        """One layer, whose parts stand side by side with `use_parallel_residual`."""
        if not self.use_parallel_residual:
            return super().layer(index, rope)
        attention = Attention(self.attention(index), rope)
        mlp = self.feed_forward(index)
        return ParallelLayer(self.hidden_size, self.eps, attention, mlp, LayerNorm)


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
    norm_class = LayerNorm
