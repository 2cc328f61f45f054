"""Attention whose values are scaled before they are cached (MiMo-V2-Flash, arXiv 2601.02780)."""

from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.rope import Rope


class ScaledValueAttention(Attention):
    """Attention to values times `value_scale`, as which they are cached."""

    def __init__(self, config: AttentionConfig, rope: Rope, value_scale: float) -> None:
        super().__init__(config, rope)
        self.value_scale = value_scale

    def _project(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super()._project(x, batch)
        return q, k, v * self.value_scale
