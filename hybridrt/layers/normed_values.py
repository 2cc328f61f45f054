"""Attention whose values are normed too, and may be made by the keys' projection (Gemma 4)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.linear import FusedLinear
from hybridrt.layers.rope import Rope


class NormedValueAttention(Attention):
    """`Attention` to `v / rms(v)`, by head and without weights.

    With `values_from_keys` what the keys' projection gives, before it is normed and rotated,
    is the values: there is no projection of theirs. Queries and keys are normed per head.
    What is cached is what `Attention` caches.
    """

    def __init__(
        self,
        config: AttentionConfig,
        rope: Rope,
        shares_cache_of: "NormedValueAttention | None" = None,
        *,
        values_from_keys: bool = False,
    ) -> None:
        super().__init__(config, rope, shares_cache_of)
        if config.qk_norm_eps is None or config.value_dim != config.head_dim:
            raise ValueError("normed values need qk_norm_eps, and heads of the keys' size")
        self.norm_eps = config.qk_norm_eps
        self.values_from_keys = values_from_keys
        self.kv_size = config.num_key_value_heads * config.head_dim
        if values_from_keys and shares_cache_of is None:
            parts = {"q_proj": config.num_attention_heads * config.head_dim, "k_proj": self.kv_size}
            self.qkv_proj = FusedLinear(config.hidden_size, parts, config.attention_bias)

    def _project(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        projected = self.qkv_proj(x)
        if self.values_from_keys:
            projected = torch.cat([projected, projected[:, -self.kv_size :]], dim=-1)
        q, k, v = self._heads(projected, batch)
        return q, k, F.rms_norm(v, v.shape[-1:], eps=self.norm_eps)
