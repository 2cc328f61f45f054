"""Grouped-query attention."""

import torch
from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec, State
from hybridrt.kernels.paged_attention import paged_attention
from hybridrt.kernels.write_pages import write_pages
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.linear import FusedLinear, Linear
from hybridrt.layers.norm import RMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.values import Value, check_divides


class AttentionConfig(Value):
    """Sizes, under their Hugging Face names. `qk_norm_eps` norms queries and keys per head."""

    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    attention_bias: bool = False
    qk_norm_eps: float | None = None

    @model_validator(mode="after")
    def _heads_share_keys(self) -> "AttentionConfig":
        check_divides(self, "num_key_value_heads", "num_attention_heads")
        return self


class Attention(CachedLayer):
    """Attention with fewer key heads than query heads (arXiv 2305.13245).

    Keys are cached behind the rotary embedding, next to their values, so that one read
    brings both: `kv: [blocks, kv_heads, block_size, 2 * head_dim]`. With `rope=None`
    there are no positions.
    """

    mixer = "attention"

    def __init__(self, config: AttentionConfig, rope: Rope | None) -> None:
        super().__init__()
        self.config = config
        self.rope = rope
        query_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        parts = {"q_proj": query_size, "k_proj": kv_size, "v_proj": kv_size}
        self.qkv_proj = FusedLinear(config.hidden_size, parts, config.attention_bias)
        self.o_proj = Linear(query_size, config.hidden_size, config.attention_bias)
        if config.qk_norm_eps is not None:
            self.q_norm = RMSNorm(config.head_dim, config.qk_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.qk_norm_eps)

    @property
    def cache_spec(self) -> CacheSpec:
        heads, tokens = self.config.num_key_value_heads, self.cache_format.kernel_block_size
        axes = (heads, tokens) if self.cache_format.kv_layout == "HND" else (tokens, heads)
        kv = State("kv", (*axes, 2 * self.config.head_dim), self.dtype)
        return CacheSpec("full", (kv,), tokens)

    def _bind(self, *views: Tensor) -> None:
        (kv,) = views
        self.kv: Float[Tensor, "blocks kv_heads block_size content"] = (
            kv if self.cache_format.kv_layout == "HND" else kv.transpose(1, 2)
        )

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        q, k, v = self._project(x, batch)
        self.update_kv_cache(k, v, batch)
        return self.o_proj(self.attend(q, batch).flatten(1))

    def _project(self, x: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, `[tokens, heads, head_dim]` each."""
        cfg = self.config
        heads = [cfg.num_attention_heads, cfg.num_key_value_heads, cfg.num_key_value_heads]
        qkv = self.qkv_proj(x).unflatten(-1, (-1, cfg.head_dim))
        if cfg.qk_norm_eps is not None:
            q, k, v = qkv.split(heads, dim=1)
            qk = torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)
        else:
            qk, v = qkv.split([heads[0] + heads[1], heads[2]], dim=1)
        if self.rope is not None:
            qk = self.rope.apply(qk, batch.rope_positions)
        q, k = qk.split(heads[:2], dim=1)
        return q, k, v

    def update_kv_cache(
        self,
        k: Float[Tensor, "tokens kv_heads head_dim"],
        v: Float[Tensor, "tokens kv_heads head_dim"],
        batch: ForwardBatch,
    ) -> None:
        """Writes the new tokens' keys and values into their slots."""
        slots = batch.token_pages(self.cache_group).slots
        write_pages(torch.cat([k, v], dim=-1), self.kv.transpose(1, 2), slots)

    def attend(
        self, q: Float[Tensor, "tokens heads head_dim"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads head_dim"]:
        """Attends to everything in the cache up to each token, itself included."""
        pages = batch.token_pages(self.cache_group)
        return paged_attention(q, self.kv, pages, batch, self.config.head_dim**-0.5)
