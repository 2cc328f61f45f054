"""Compressors: one entry in the cache for every few tokens (DeepSeek-V4, sections 2.3.1, 2.3.2)."""

import torch
from jaxtyping import Float, Float32, Int32
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec, State, Window, entries_of_block
from hybridrt.kernels.pool_chunks import pool_chunks
from hybridrt.kernels.reference.entries import EntryGrid
from hybridrt.kernels.select_entries import select_entries
from hybridrt.kernels.write_pages import write_pages
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.indexer import HeadWeights
from hybridrt.layers.linear import FusedLinear, Linear
from hybridrt.layers.norm import Float32RMSNorm
from hybridrt.layers.rope import Rope
from hybridrt.values import Value


class EntryConfig(Value):
    """An entry of `head_dim` numbers for each chunk of `rate` tokens.

    With `overlaps` it is of the chunk before too; see `hybridrt.kernels.pool_chunks`.
    """

    head_dim: PositiveInt
    rate: PositiveInt
    overlaps: bool = False

    @property
    def width(self) -> int:
        """Values of a token, and as many gates."""
        return self.head_dim * (2 if self.overlaps else 1)

    @property
    def window(self) -> Window:
        """The tokens of which the chunk that ends with a token is made."""
        return Window(2 * self.rate) if self.overlaps else Window(self.rate, chunked=True)


class CompressorConfig(EntryConfig):
    """Entries, and what they are made from."""

    hidden_size: PositiveInt
    rms_norm_eps: PositiveFloat


class ChunkInputs(CachedLayer):
    """What a compressor needs of each token until its chunk has ended.

    `inputs: [blocks, block_size, 2 * width]`, values and then gates, as long as a token in its
    window may still need them; so a chunk may be cut wherever a step ends or a prefix is found.
    """

    mixer = "chunk_inputs"

    def __init__(self, config: EntryConfig, refuses_formats: bool) -> None:
        super().__init__()
        self.config = config
        self.refuses_formats = refuses_formats

    @property
    def cache_spec(self) -> CacheSpec:
        if self.refuses_formats:
            refuse_quantised(self)
        tokens = self.cache_format.kernel_block_size
        inputs = State("inputs", (tokens, 2 * self.config.width), self.dtype)
        return CacheSpec("window", (inputs,), tokens, self.config.window)

    def _bind(self, *views: Tensor) -> None:
        (self.inputs,) = views


class EntryCache(CachedLayer):
    """Caches the entries of chunks, which it makes at the step in which they end.

    `entries: [blocks, entries_per_block, head_dim]`, in the model's dtype: a `kv_cache_dtype` is
    for what stands beside them, if it isn't refused. See `EntryGrid` for which entry stands where.
    """

    mixer = "entries"
    refuses_formats = False

    def __init__(self, config: EntryConfig) -> None:
        super().__init__()
        self.config = config
        self.chunk_inputs = ChunkInputs(config, self.refuses_formats)

    @property
    def cache_spec(self) -> CacheSpec:
        if self.refuses_formats:
            refuse_quantised(self)
        tokens, rate = self.cache_format.kernel_block_size, self.config.rate
        shape = (entries_of_block(tokens, rate), self.config.head_dim)
        return CacheSpec("full", (State("entries", shape, self.dtype, rate),), tokens)

    def _bind(self, *views: Tensor) -> None:
        (self.entries,) = views

    @property
    def grid(self) -> EntryGrid:
        """Where the entries stand."""
        return EntryGrid(self.config.rate, self.cache_format.kernel_block_size)

    def pool(
        self,
        inputs: Float[Tensor, "tokens twice_width"],
        bias: Float32[Tensor, "rate width"],
        batch: ForwardBatch,
    ) -> Float[Tensor, "tokens head_dim"]:
        """Caches what the new tokens are to their chunks; what is made of those that they end."""
        recent = batch.token_pages(self.chunk_inputs.cache_group)
        write_pages(inputs, self.chunk_inputs.inputs, recent.slots)
        cached = self.chunk_inputs.inputs
        return pool_chunks(cached, bias, recent, batch, self.config.overlaps)

    def keep(self, entries: Float[Tensor, "tokens head_dim"], batch: ForwardBatch) -> None:
        """Caches the entry of each new token that ends a chunk."""
        slots = batch.token_pages(self.cache_group).slots
        slots = self.grid.slots(slots, batch.positions, self.entries.shape[1])
        write_pages(entries, self.entries, slots)


class Compressor(EntryCache):
    """Makes entries that stand for their tokens.

    They are behind their norm, and the last of their values are rotated by the position of
    their chunk's first token.
    """

    mixer = "compressor"
    refuses_formats = True

    def __init__(self, config: CompressorConfig, rope: Rope) -> None:
        super().__init__(config)
        self.rope = rope
        parts = {"kv_proj": config.width, "gate_proj": config.width}
        self.in_proj = FusedLinear(config.hidden_size, parts)
        bias = torch.empty(config.rate, config.width, dtype=torch.float32)
        self.position_bias = nn.Parameter(bias, requires_grad=False)
        self.kv_norm = Float32RMSNorm(config.head_dim, config.rms_norm_eps)

    def compress(self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch) -> None:
        """Caches what the new tokens are to their chunks, and the entries that end with them."""
        pooled = self.pool(self.in_proj(x), self.position_bias, batch)
        starts = batch.rope_positions - batch.positions % self.config.rate
        self.keep(self.rope.apply_to_last(self.kv_norm(pooled)[:, None], starts)[:, 0], batch)


class EntryIndexer(Compressor):
    """A compressor of its own, by whose entries the best for each token are found.

    Its heads score entries as those of `hybridrt.layers.indexer` score tokens.
    """

    mixer = "entry_indexer"

    def __init__(
        self,
        config: CompressorConfig,
        rope: Rope,
        query_input_size: PositiveInt,
        index_n_heads: PositiveInt,
        index_topk: PositiveInt,
    ) -> None:
        super().__init__(config, rope)
        self.index_topk = index_topk
        self.q_b_proj = Linear(query_input_size, index_n_heads * config.head_dim)
        self.weights_proj = HeadWeights(config.hidden_size, index_n_heads)

    def select(
        self,
        x: Float[Tensor, "tokens hidden"],
        query_input: Float[Tensor, "tokens query_input"],
        batch: ForwardBatch,
    ) -> Int32[Tensor, "tokens top_k"]:
        """Caches this indexer's entries, and finds those that each new token attends to."""
        self.compress(x, batch)
        queries = self.q_b_proj(query_input).unflatten(-1, (-1, self.config.head_dim))
        queries = self.rope.apply_to_last(queries, batch.rope_positions)
        weights = self.weights_proj(x) * (queries.shape[1] * queries.shape[2]) ** -0.5
        pages = batch.token_pages(self.cache_group)
        return select_entries(
            queries, weights, self.entries, pages, self.grid, batch, self.index_topk
        )


def refuse_quantised(layer: CachedLayer) -> None:
    """Refuses the formats of a cache that these layers don't have.

    Raises:
        ValueError: `kv_cache_dtype` isn't "auto".
    """
    dtype = layer.cache_format.kv_cache_dtype
    if dtype != "auto":
        raise ValueError(
            f"{layer.name}: kv_cache_dtype={dtype!r} should be 'auto': {layer.mixer} caches "
            f"in the model's dtype only"
        )
