"""The indexer of Qwen4-Exp, which finds blocks of tokens by the average of their keys."""

import torch
from jaxtyping import Float, Int32
from pydantic import PositiveInt, model_validator
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.average_blocks import average_blocks
from hybridrt.kernels.select_blocks import select_blocks
from hybridrt.kernels.write_pages import write_pages
from hybridrt.layers.indexed_attention import BlockIndexer
from hybridrt.layers.linear import Linear
from hybridrt.layers.norm import OffsetRMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.values import Value, check_divides


class AveragedIndexerConfig(Value):
    """Sizes, under their Hugging Face names. `indexer_budget` tokens in blocks are selected."""

    hidden_size: PositiveInt
    indexer_n_heads: PositiveInt
    indexer_head_dim: PositiveInt
    indexer_budget: PositiveInt
    indexer_compress_ratio: PositiveInt
    norm_eps: float = 1e-6

    @model_validator(mode="after")
    def _budget_is_of_blocks(self) -> "AveragedIndexerConfig":
        check_divides(self, "indexer_compress_ratio", "indexer_budget")
        return self


class AveragedIndexer(BlockIndexer):
    """Small heads that score every complete block of `indexer_compress_ratio` tokens.

    A block's key is the mean of its tokens' keys, normed, and rotated by the position of its
    first token. It is made when its last token comes, and takes the place of that token's key,
    which nobody needs then. So the keys of a block that isn't complete are all there, wherever
    a prompt is cut or a prefix ends. A token attends to the blocks with the highest scores, and
    to those tokens behind the last complete block; so it may not see itself.
    """

    def __init__(self, config: AveragedIndexerConfig, rope: Rope) -> None:
        super().__init__()
        self.config = config
        self.rope = rope
        self.index_head_dim = config.indexer_head_dim
        if rope.dim > config.indexer_head_dim:
            raise ValueError(
                f"indexer_head_dim={config.indexer_head_dim} should be at least {rope.dim}, "
                "the dimensions of a head that are rotated"
            )
        size = (config.indexer_n_heads + 1) * config.indexer_head_dim
        self.index_qk_proj = Linear(config.hidden_size, size)
        self.q_layernorm = OffsetRMSNorm(config.indexer_head_dim, config.norm_eps)
        self.k_layernorm = OffsetRMSNorm(config.indexer_head_dim, config.norm_eps)

    def forward(
        self,
        x: Float[Tensor, "tokens hidden"],
        k_index: Float[Tensor, "blocks block_size dim"],
        group: str,
        batch: ForwardBatch,
    ) -> Int32[Tensor, "tokens groups width"]:
        cfg, pages = self.config, batch.token_pages(group)
        size = cfg.indexer_compress_ratio
        q, k = self.index_qk_proj(x).unflatten(-1, (-1, self.index_head_dim)).tensor_split([-1], 1)
        q = self.rope.apply(self.q_layernorm(q), batch.rope_positions)
        mean = average_blocks(k[:, 0], k_index, pages, batch, size)
        first = (batch.rope_positions - (size - 1)).clamp(min=0)
        finished = self.rope.apply(self.k_layernorm(mean)[:, None], first)[:, 0]
        ends_block = ((batch.positions + 1) % size == 0)[:, None]
        write_pages(torch.where(ends_block, finished, mean), k_index, pages.slots)
        blocks = cfg.indexer_budget // size
        return select_blocks(q, k_index, pages, batch, size, blocks)[:, None]
