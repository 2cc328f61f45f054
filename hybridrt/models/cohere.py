"""Command R (Cohere, 2024): attention and SwiGLU side by side, on one LayerNorm."""

from typing import Literal

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor

from hybridrt.layers.norm import UnbiasedLayerNorm
from hybridrt.models.decoder import ParallelLayer
from hybridrt.models.transformer import StackConfig, TransformerLM


class Config(StackConfig):
    """Keys of a Command R `config.json`. Normed queries and keys are refused."""

    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 8192
    layer_norm_eps: float = 1e-5
    logit_scale: float = 0.0625
    tie_word_embeddings: bool = True
    mlp_bias: Literal[False] = False
    use_qk_norm: Literal[False] = False

    default_rope_theta = 500_000.0
    interleaved_rope = True
    norm_class = UnbiasedLayerNorm
    layer_class = ParallelLayer
    without_effect = ("cache_implementation", "model_max_length", "pretraining_tp")

    @property
    def eps(self) -> float:
        return self.layer_norm_eps


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
    config: Config
    norm_class = UnbiasedLayerNorm

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        return super().logits(hidden) * self.config.logit_scale
