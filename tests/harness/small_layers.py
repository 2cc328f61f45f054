"""Makers of cached layers, with small sizes: the rows of `layer_rows.py` choose the rest."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.averaged_indexer import AveragedIndexer, AveragedIndexerConfig
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.dynamic_conv import DynamicConv
from hybridrt.layers.gated_attention import GatedAttention, GatedMLA, HeadGatedAttention
from hybridrt.layers.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig
from hybridrt.layers.gated_sparse_mla import GatedSparseMLA, TailRotatedIndexer
from hybridrt.layers.indexed_attention import IndexedAttention, IndexedGatedAttention
from hybridrt.layers.indexer import Indexer, IndexerConfig
from hybridrt.layers.kda import KimiDeltaAttention, KimiDeltaAttentionConfig
from hybridrt.layers.lightning_attention import LightningAttention, LightningAttentionConfig
from hybridrt.layers.mamba1 import Mamba1, Mamba1Config
from hybridrt.layers.mamba1_heads import Mamba1Heads
from hybridrt.layers.mamba2 import Mamba2, Mamba2Config
from hybridrt.layers.mla import MLA, MLAConfig
from hybridrt.layers.mlstm import MLSTM, MLSTMConfig
from hybridrt.layers.peak_indexer import PeakIndexer, PeakIndexerConfig
from hybridrt.layers.relative_attention import LogGrowth, RelativeAttention, RelativeConfig
from hybridrt.layers.rg_lru import RecurrentBlock, RecurrentBlockConfig
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.layers.short_conv import ShortConv, ShortConvConfig
from hybridrt.layers.sparse_mla import SparseMLA

HIDDEN = 24
LONGEST = 128  # tokens of a sequence, for the rotary tables
_SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}


def rotary(dim: int, interleaved: bool = False, **settings: Any) -> Rope:
    rope = Rope(RopeConfig(rope_theta=300.0, **settings), dim, interleaved)
    rope.prepare(LONGEST, torch.device("cpu"))
    return rope


def attention(rope: Rope | None, **changes: Any) -> Callable[[], CachedLayer]:
    config = AttentionConfig(**{"hidden_size": HIDDEN, **_SIZES, **changes})
    return lambda: Attention(config, rope)


class SharedPair(CachedLayer):
    """A layer, and one that reads its cache."""

    mixer = "attention"

    def __init__(self, config: AttentionConfig, rope: Rope | None) -> None:
        super().__init__()
        self.source = Attention(config, rope)
        self.reader = Attention(config, rope, shares_cache_of=self.source)

    @property
    def cache_spec(self) -> CacheSpec:
        self.source.cache_format = self.cache_format
        return self.source.cache_spec

    def _bind(self, *views: Tensor) -> None:
        """The pages are the source's, and none of this layer's own."""

    def bind_kv_cache(self, pages: Tensor) -> None:
        self.source.name = self.name
        self.source.bind_kv_cache(pages)

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        self.source.cache_group = self.cache_group
        y = self.source(x, batch)
        return y + self.reader(x + y, batch)


def shared(**changes: Any) -> Callable[[], CachedLayer]:
    config = AttentionConfig(**{"hidden_size": HIDDEN, **_SIZES, **changes})
    return lambda: SharedPair(config, rotary(6))


def mla(interleaved: bool = True, **changes: Any) -> Callable[[], CachedLayer]:
    # At these sizes chunks of either kind come up, those that expand and those that don't.
    sizes: dict[str, Any] = {
        "num_attention_heads": 3,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
    }
    config = MLAConfig(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: MLA(config, rotary(config.qk_rope_head_dim, interleaved))


def relative(**changes: Any) -> Callable[[], CachedLayer]:
    config = AttentionConfig(**{"hidden_size": HIDDEN, **_SIZES, "scale": 0.3, **changes})
    growth = LogGrowth(alpha=0.5, floor=6)
    relative = RelativeConfig(d_rel=3, extent=7, growth=growth)
    return lambda: RelativeAttention(config, relative)


class OwnDynamicConv(DynamicConv):
    """One whose inputs decide how they are convolved."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, batch: ForwardBatch
    ) -> Tensor:
        return super().forward(x, x, batch)


def sparse_mla(
    index_topk: int, rope_dim: int = 4, gated: bool = False
) -> Callable[[], CachedLayer]:
    mla = MLAConfig(
        hidden_size=HIDDEN,
        num_attention_heads=3,
        q_lora_rank=10,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=rope_dim,
        v_head_dim=6,
    )
    index = IndexerConfig(
        hidden_size=HIDDEN,
        query_input_size=10,
        index_n_heads=12,
        index_head_dim=8,
        index_topk=index_topk,
    )
    if gated:
        rope = rotary(4)
        return lambda: GatedSparseMLA(mla, rope, TailRotatedIndexer(index, rope, 1e-5))
    return lambda: SparseMLA(mla, rotary(4, True), Indexer(index, rotary(4)))


def indexed(budget: int, size: int) -> Callable[[], CachedLayer]:
    attention = AttentionConfig(hidden_size=HIDDEN, **_SIZES, qk_norm_eps=1e-5)
    index = AveragedIndexerConfig(
        hidden_size=HIDDEN,
        indexer_n_heads=12,
        indexer_head_dim=8,
        indexer_budget=budget,
        indexer_compress_ratio=size,
    )
    rope = rotary(6)
    return lambda: IndexedGatedAttention(attention, rope, AveragedIndexer(index, rope))


def peak_indexed(heads: int, size: int, local: int) -> Callable[[], CachedLayer]:
    attention = AttentionConfig(hidden_size=HIDDEN, **_SIZES, qk_norm_eps=1e-5)
    index = PeakIndexerConfig(
        hidden_size=HIDDEN,
        num_key_value_heads=2,
        index_n_heads=heads,
        index_head_dim=8,
        index_block_size=size,
        index_topk_blocks=2,
        index_local_blocks=local,
    )
    rope = rotary(6)
    return lambda: IndexedAttention(attention, rope, PeakIndexer(index, rope))


def gated(
    kind: type[GatedAttention] | type[HeadGatedAttention], **changes: Any
) -> Callable[[], CachedLayer]:
    config = AttentionConfig(**{"hidden_size": HIDDEN, **_SIZES, **changes})
    return lambda: kind(config, rotary(6))


def gated_mla() -> Callable[[], CachedLayer]:
    config = MLAConfig(
        hidden_size=HIDDEN,
        num_attention_heads=3,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
    )
    return lambda: GatedMLA(config, None)


def mamba1(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"intermediate_size": 20, "state_size": 5, "time_step_rank": 3}
    config = Mamba1Config(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: Mamba1(config)


def mamba1_heads(num_heads: int, **changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"intermediate_size": 20, "state_size": 5, "time_step_rank": 3}
    config = Mamba1Config(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: Mamba1Heads(config, num_heads)


def mamba2(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"num_heads": 4, "head_dim": 6, "state_size": 5, "n_groups": 2, "chunk_size": 8}
    config = Mamba2Config(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: Mamba2(config)


def rg_lru(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"hidden_size": HIDDEN, "lru_width": 20, "num_heads": 4}
    return lambda: RecurrentBlock(RecurrentBlockConfig(**{**sizes, **changes}))


def short_conv(**changes: Any) -> Callable[[], CachedLayer]:
    return lambda: ShortConv(ShortConvConfig(hidden_size=HIDDEN, **changes))


def gated_delta_net(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 6, "value_head_dim": 5}
    config = GatedDeltaNetConfig(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: GatedDeltaNet(config)


def kda(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"num_heads": 4, "head_dim": 6}
    config = KimiDeltaAttentionConfig(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: KimiDeltaAttention(config)


def xlstm(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"num_heads": 4, "qk_dim": 16, "v_dim": 24, "gate_soft_cap": 5.0}
    return lambda: MLSTM(MLSTMConfig(**{"hidden_size": HIDDEN, **sizes, **changes}))


def lightning(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"num_attention_heads": 4, "head_dim": 6}
    config = LightningAttentionConfig(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: LightningAttention(config)
