"""OLMo 2 (arXiv 2501.00656): norms behind attention and MLP, and over all heads of a token."""

from typing import Literal

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import AttentionConfig
from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Layer(nn.Module):
    """`x + norm(attention(x))`, then `x + norm(mlp(x))`."""

    def __init__(
        self,
        hidden_size: int,
        norm_eps: float,
        self_attn: nn.Module,
        mlp: nn.Module,
        norm_class: type[nn.Module],
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.post_attention_layernorm = norm_class(hidden_size, norm_eps)
        self.mlp = mlp
        self.post_feedforward_layernorm = norm_class(hidden_size, norm_eps)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        x = x + self.post_attention_layernorm(self.self_attn(x, batch))
        return x + self.post_feedforward_layernorm(self.mlp(x))


class Config(TransformerConfig):
    """Keys of an OLMo 2 `config.json`."""

    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: float = 1e-5
    mlp_bias: Literal[False] = False

    layer_class = Layer

    def attention(self, index: int) -> AttentionConfig:
        """Queries and keys are normed, all heads of a token together."""
        changes = {"qk_norm_eps": self.rms_norm_eps, "qk_norm_over": "heads"}
        return super().attention(index).model_copy(update=changes)


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
