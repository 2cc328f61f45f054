"""GLM-4-0414 (Zhipu AI, 2025): GLM-4 with norms before and behind each part."""

from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.norm import add_and_norm
from hybridrt.models import glm
from hybridrt.models.decoder import DecoderLayer


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

    def advance(
        self,
        x: Float[Tensor, "tokens hidden"],
        normed: Float[Tensor, "tokens hidden"],
        batch: ForwardBatch,
    ) -> tuple[Float[Tensor, "tokens hidden"], Float[Tensor, "tokens hidden"]]:
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
