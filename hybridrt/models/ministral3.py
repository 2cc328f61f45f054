"""Ministral 3 (Mistral AI, 2025): Mistral whose queries grow with their position.

The text model of `mistral3` checkpoints.
"""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mla import QueryGrowth
from hybridrt.layers.rope import Rope
from hybridrt.models import mistral
from hybridrt.models.config import ModelConfig
from hybridrt.models.decoder import DecoderLayer


class Config(mistral.Config):
    """Keys of a Ministral 3 `config.json`. Its `rope_parameters` have two more.

    Behind every `original_max_position_embeddings` tokens queries are multiplied by more.
    """

    head_dim: PositiveInt | None = 128
    max_position_embeddings: PositiveInt = 262_144
    rms_norm_eps: float = 1e-5
    sliding_window: PositiveInt | None = None
    llama_4_scaling_beta: float

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model; `llama_4_scaling_beta` stands in its `rope_parameters`."""
        rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
        rest = {key: config[key] for key in config if key != "rope_scaling"}
        beta = {"llama_4_scaling_beta": rope.pop("llama_4_scaling_beta", None)}
        return super().from_json({**rest, **beta, "rope_parameters": rope}, ignore)

    def layer(self, index: int, rope: Rope) -> nn.Module:
        """One layer."""
        length = self.rope_parameters.original_max_position_embeddings
        if length is None:
            raise ValueError("rope_parameters need original_max_position_embeddings")
        growth = QueryGrowth(beta=self.llama_4_scaling_beta, length=length)
        attention = GrowingAttention(self.attention(index), rope, growth)
        return DecoderLayer(self.hidden_size, self.eps, attention, self.feed_forward(index))


class GrowingAttention(Attention):
    """Attention whose queries are multiplied by a factor of their position."""

    def __init__(self, config: AttentionConfig, rope: Rope, growth: QueryGrowth) -> None:
        super().__init__(config, rope)
        self.growth = growth

    def _project(self, x: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super()._project(x, batch)
        return q * self.growth.factors(batch.positions)[:, None, None].to(q.dtype), k, v


class Model(mistral.Model):
    """Attention and SwiGLU in every layer."""

    Config = Config
    text_config_of = ("mistral3",)
