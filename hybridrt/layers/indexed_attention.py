"""Grouped-query attention to a few tokens of many, which an indexer selects."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int32
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec, State
from hybridrt.kernels.gated import sigmoid_gated
from hybridrt.kernels.sparse_attention import sparse_attention
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.gated_attention import GatedAttention
from hybridrt.layers.rope import Rope


class BlockIndexer(nn.Module, ABC):
    """Scores the tokens before each new one, in blocks, by one small key of every token."""

    index_head_dim: int

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "tokens hidden"],
        k_index: Float[Tensor, "blocks block_size dim"],
        group: str,
        batch: ForwardBatch,
    ) -> Int32[Tensor, "tokens groups width"]:
        """Caches the new tokens' keys, of the cache group `group`, in `k_index`.

        What each of them attends to, as `hybridrt.kernels.sparse_attention` takes it.
        """


class IndexedAttention(Attention):
    """Attention to the tokens that its indexer selects.

    Beside keys and values what the indexer finds tokens by is cached, `k_index: [blocks,
    block_size, index_head_dim]`, in the model's dtype whatever that of the keys.
    """

    mixer = "indexed_attention"

    def __init__(self, config: AttentionConfig, rope: Rope | None, indexer: BlockIndexer) -> None:
        super().__init__(config, rope)
        if config.window is not None or config.sinks or config.softcap is not None:
            raise ValueError(f"{config!r} should have no window, sinks or softcap")
        self.indexer = indexer

    @property
    def cache_spec(self) -> CacheSpec:
        spec, tokens = super().cache_spec, self.cache_format.kernel_block_size
        k_index = State("k_index", (tokens, self.indexer.index_head_dim), self.dtype)
        return CacheSpec("full", (*spec.states, k_index), tokens)

    def _bind(self, *views: Tensor) -> None:
        super()._bind(*views[:-1])
        self.k_index = views[-1]

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        return self.o_proj(self._attend_selecting(x, *self._project(x, batch), batch).flatten(1))

    def _attend_selecting(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads head_dim_v"]:
        self.update_kv_cache(k, v, batch)
        selected = self.indexer(x, self.k_index, self.cache_group, batch)
        return sparse_attention(
            q,
            self.cached.k,
            self.cached.v,
            selected,
            batch.token_pages(self.cache_group),
            batch,
            self.scale,
            k_scale=self.cached.k_scale,
            v_scale=self.cached.v_scale,
        )


class IndexedGatedAttention(IndexedAttention, GatedAttention):
    """`IndexedAttention` whose output each token gates, as `GatedAttention`."""

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        q, k, v, gate = self._project_gated(x, batch)
        out = self._attend_selecting(x, q, k, v, batch)
        return self.o_proj(sigmoid_gated(out.flatten(1), gate.flatten(1)))
