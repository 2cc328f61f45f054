"""The indexer of MiniMax-M3, which finds blocks of tokens by the best key in each."""

import torch
from jaxtyping import Float, Int32
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.select_peak_blocks import select_peak_blocks
from hybridrt.kernels.write_pages import write_pages
from hybridrt.layers.indexed_attention import BlockIndexer
from hybridrt.layers.linear import FusedLinear
from hybridrt.layers.norm import OffsetRMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.values import Value, check_divides


class PeakIndexerConfig(Value):
    """Sizes, under their Hugging Face names.

    Of the `index_topk_blocks` blocks that are selected `index_local_blocks` are the last.
    """

    hidden_size: PositiveInt
    num_key_value_heads: PositiveInt
    index_n_heads: PositiveInt
    index_head_dim: PositiveInt
    index_block_size: PositiveInt
    index_topk_blocks: PositiveInt
    index_local_blocks: int = Field(ge=0)
    norm_eps: float = 1e-6

    @model_validator(mode="after")
    def _heads_select_for_key_heads(self) -> "PeakIndexerConfig":
        check_divides(self, "index_n_heads", "num_key_value_heads")
        if self.index_local_blocks > self.index_topk_blocks:
            raise ValueError(
                f"index_local_blocks={self.index_local_blocks} should be at most "
                f"index_topk_blocks={self.index_topk_blocks}"
            )
        return self


class PeakIndexer(BlockIndexer):
    """Small heads, each of which selects blocks for its share of the heads of keys and values.

    A block scores what its best token scores. Tokens' keys, one head that all share, are cached
    behind their norm and the rotary embedding.
    """

    def __init__(self, config: PeakIndexerConfig, rope: Rope) -> None:
        super().__init__()
        self.config = config
        self.rope = rope
        self.index_head_dim = dim = config.index_head_dim
        if rope.dim > dim:
            raise ValueError(
                f"index_head_dim={dim} should be at least {rope.dim}, the dimensions of a head "
                "that are rotated"
            )
        parts = {"q_proj": config.index_n_heads * dim, "k_proj": dim}
        self.qk_proj = FusedLinear(config.hidden_size, parts)
        self.q_norm = OffsetRMSNorm(dim, config.norm_eps)
        self.k_norm = OffsetRMSNorm(dim, config.norm_eps)

    def forward(
        self,
        x: Float[Tensor, "tokens hidden"],
        k_index: Float[Tensor, "blocks block_size dim"],
        group: str,
        batch: ForwardBatch,
    ) -> Int32[Tensor, "tokens groups width"]:
        cfg, pages = self.config, batch.token_pages(group)
        q, k = self.qk_proj(x).unflatten(-1, (-1, self.index_head_dim)).tensor_split([-1], dim=1)
        heads = torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)
        q, k = self.rope.apply(heads, batch.rope_positions).tensor_split([-1], dim=1)
        write_pages(k[:, 0], k_index, pages.slots)
        size, blocks, local = cfg.index_block_size, cfg.index_topk_blocks, cfg.index_local_blocks
        return select_peak_blocks(q, k_index, pages, batch, size, blocks, local)
