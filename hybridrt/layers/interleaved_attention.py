"""Attention whose checkpoints have queries, keys and values head by head (GPT-NeoX)."""

from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.linear import FusedLinear
from hybridrt.layers.rope import Rope


class InterleavedAttention(Attention):
    """`Attention` with one projection, `query_key_value`, of all three of a head in turn.

    Raises:
        ValueError: there are fewer key heads than query heads, or values of another size.
    """

    def __init__(self, config: AttentionConfig, rope: Rope | None) -> None:
        super().__init__(config, rope)
        if config.num_key_value_heads != config.num_attention_heads or config.head_dim_v:
            raise ValueError("interleaved queries, keys and values should be of one size")
        size = 3 * config.num_attention_heads * config.head_dim
        parts = {"query_key_value": size}
        self.qkv_proj = FusedLinear(config.hidden_size, parts, config.attention_bias)

    def _project(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.qkv_proj(x).unflatten(-1, (self.config.num_attention_heads, 3, -1))
        return self._heads(heads.transpose(1, 2).flatten(1), batch)
