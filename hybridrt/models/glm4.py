"""GLM-4-0414 (Zhipu AI, 2025): GLM-4 with norms before and behind each part."""

from torch import nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.norm import add_and_norm
from hybridrt.models import glm
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.stream import Hidden


class Layer(DecoderLayer):
    """`x + norm(attention(norm(x)))`, then `x + norm(mlp(norm(x)))`."""

    def __init__(
        self,
        hidden_size: int,
        norm_eps: float,
        self_attn: nn.Module,
        mlp: nn.Module,
        norm_class: type[nn.Module],
    ) -> None:
        super().__init__(hidden_size, norm_eps, self_attn, mlp, norm_class)
        self.post_self_attn_layernorm = norm_class(hidden_size, norm_eps)
        self.post_mlp_layernorm = norm_class(hidden_size, norm_eps)

    def advance(self, x: Hidden, normed: Hidden, batch: ForwardBatch) -> tuple[Hidden, Hidden]:
        attended = self.self_attn(normed, batch)
        attended = self.post_self_attn_layernorm(attended)
        x, normed = add_and_norm(x, attended, self.post_attention_layernorm)
        return x, self.post_mlp_layernorm(self.mlp(normed))


class Config(glm.Config):
    """Keys of a GLM-4-0414 `config.json`."""

    layer_class = Layer


class Model(glm.Model):
    """Attention and SwiGLU in every layer."""

    Config = Config
