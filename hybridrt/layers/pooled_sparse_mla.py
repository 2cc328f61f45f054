"""Sparse MLA whose indexer selects pools of tokens that follow each other (GLM-5.3)."""

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.select_entries import select_entries
from hybridrt.layers.compressor import EntryCache, EntryConfig
from hybridrt.layers.indexer import Indexer, IndexerConfig, IndexHeads
from hybridrt.layers.mla import MLAConfig
from hybridrt.layers.sparse_mla import SparseMLA


class PooledIndexer(Indexer):
    """An indexer without positions whose keys are weighted means of `pool` tokens' keys.

    A token has a key, and a gate that says what it counts in each channel: of these, with
    learned offsets, the softmax over a pool is taken, when its last token comes. Cached are the
    pools' keys, and of the tokens of an unfinished pool their own keys and gates.
    """

    caches_its_keys = True

    def __init__(self, config: IndexerConfig, pool: int) -> None:
        super().__init__(config, None)
        if config.index_topk % pool:
            raise ValueError(f"index_topk={config.index_topk} should be a multiple of {pool}")
        dim = config.index_head_dim
        self.index_kpool_compress_ape = nn.Parameter(torch.empty(pool, dim), requires_grad=False)
        self.index_kpool_compress_gate = nn.Parameter(
            torch.empty(dim, config.hidden_size), requires_grad=False
        )
        self.pools = EntryCache(EntryConfig(head_dim=dim, rate=pool))

    def forward(
        self,
        x: Float[Tensor, "tokens hidden"],
        query_input: Float[Tensor, "tokens query_input"],
        batch: ForwardBatch,
    ) -> IndexHeads:
        """What the new tokens look for; the keys of the pools that end with them are cached."""
        heads = super().forward(x, query_input, batch)
        gates = F.linear(x, self.index_kpool_compress_gate)
        offsets = self.index_kpool_compress_ape.float()
        keys = self.pools.pool(torch.cat([heads.keys, gates], dim=-1), offsets, batch)
        self.pools.keep(keys, batch)
        return heads._replace(keys=keys)


class PooledSparseMLA(SparseMLA):
    """MLA without positions that attends to selected pools, and to the tokens of an unfinished one.

    Tokens `i * pool` to `i * pool + pool - 1` of a sequence are pool i. The best of those whose
    last token is no later than the new one are selected, `index_topk` tokens at most.
    """

    def __init__(self, config: MLAConfig, indexer: PooledIndexer | None) -> None:
        super().__init__(config, None, indexer)

    def _select(self, heads: IndexHeads, batch: ForwardBatch) -> Int32[Tensor, "tokens most"]:
        assert isinstance(self.indexer, PooledIndexer)
        pools, top_k = self.indexer.pools, self.indexer.config.index_topk
        pages, size = batch.token_pages(pools.cache_group), pools.config.rate
        best = select_entries(
            heads.queries, heads.weights, pools.entries, pages, pools.grid, batch, top_k // size
        )
        selected = tokens_of_pools(best, batch.positions, size)
        return selected.masked_fill((pages.slots < 0)[:, None], -1)


def tokens_of_pools(
    pools: Int32[Tensor, "tokens pools"], positions: Int64[Tensor, " tokens"], size: int
) -> Int32[Tensor, "tokens most"]:
    """The tokens of these pools, and those behind the last pool that has ended, up to `positions`.

    Pools ascend and so do tokens, behind the last of either stands -1: as what
    `hybridrt.kernels.sparse_mla_attention` takes. There are `pools * size + size - 1` places.
    """
    place = torch.arange(pools.shape[1] * size + size - 1, device=pools.device)
    in_pools = (pools >= 0).sum(-1, keepdim=True) * size
    pool = (place // size).clamp(max=pools.shape[1] - 1)
    token = pools[:, pool] * size + place % size
    ended = ((positions + 1) // size * size)[:, None]
    behind = ended + place - in_pools
    behind = behind.masked_fill(behind > positions[:, None], -1)
    return torch.where(place < in_pools, token, behind).to(torch.int32)
