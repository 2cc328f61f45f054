"""Granite 3 (IBM, 2024): Llama with multipliers (muP, arXiv 2203.03466)."""

from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.norm import add_and_norm
from hybridrt.layers.rope import Rope
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.stream import Hidden
from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Config(TransformerConfig):
    """Keys of a Granite 3 `config.json`."""

    max_position_embeddings: PositiveInt = 2048
    embedding_multiplier: float = 1.0
    logits_scaling: PositiveFloat = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: PositiveFloat = 1.0

    def attention(self, index: int) -> AttentionConfig:
        """Scores are scaled by `attention_multiplier`."""
        return super().attention(index).model_copy(update={"scale": self.attention_multiplier})

    def layer(self, index: int, rope: Rope) -> nn.Module:
        """One layer, whose parts are scaled before they are added."""
        attention = Attention(self.attention(index), rope)
        return Layer(self, attention, self.feed_forward(index))


class Layer(DecoderLayer):
    """`x + r * attention(norm(x))`, then `x + r * mlp(norm(x))`."""

    def __init__(self, config: Config, self_attn: Attention, mlp: nn.Module) -> None:
        super().__init__(config.hidden_size, config.eps, self_attn, mlp)
        self.scale = config.residual_multiplier

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        attended = self.self_attn(normed, batch)
        x, normed = add_and_norm(x, attended, self.post_attention_layernorm, self.scale)
        return x, self.mlp(normed)


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
    config: Config

    def embed(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        return super().embed(batch) * self.config.embedding_multiplier

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        return super().logits(hidden) / self.config.logits_scaling
