"""Every cached layer, small, with weights at which mistakes show."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec, Window
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.gated_attention import GatedAttention, GatedMLA, HeadGatedAttention
from hybridrt.layers.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig
from hybridrt.layers.indexer import Indexer, IndexerConfig
from hybridrt.layers.kda import KimiDeltaAttention, KimiDeltaAttentionConfig
from hybridrt.layers.lightning_attention import LightningAttention, LightningAttentionConfig
from hybridrt.layers.mamba1 import Mamba1, Mamba1Config
from hybridrt.layers.mamba1_heads import Mamba1Heads
from hybridrt.layers.mamba2 import Mamba2, Mamba2Config
from hybridrt.layers.mla import MLA, MLAConfig, QueryGrowth
from hybridrt.layers.rg_lru import RecurrentBlock, RecurrentBlockConfig
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.layers.short_conv import ShortConv, ShortConvConfig
from hybridrt.layers.sparse_mla import SparseMLA

HIDDEN = 24
LONGEST = 128  # tokens of a sequence, for the rotary tables


@dataclass(frozen=True)
class LayerRow:
    """One layer, and why it is there."""

    reason: str
    make: Callable[[], CachedLayer]

    @property
    def kind(self) -> str:
        return self.make().cache_spec.kind


def _rope(dim: int, interleaved: bool = False, **settings: Any) -> Rope:
    rope = Rope(RopeConfig(rope_theta=300.0, **settings), dim, interleaved)
    rope.prepare(LONGEST, torch.device("cpu"))
    return rope


_GROWTH = QueryGrowth(beta=0.4, length=6)
_MULTIPLIERS = (0.8, 1.3, 0.7, 1.2, 1.5)
_SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}


def _attention(rope: Rope | None, **changes: Any) -> Callable[[], CachedLayer]:
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


def _shared(**changes: Any) -> Callable[[], CachedLayer]:
    config = AttentionConfig(**{"hidden_size": HIDDEN, **_SIZES, **changes})
    return lambda: SharedPair(config, _rope(6))


def _mla(interleaved: bool = True, **changes: Any) -> Callable[[], CachedLayer]:
    # At these sizes chunks of either kind come up, those that expand and those that don't.
    sizes: dict[str, Any] = {
        "num_attention_heads": 3,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
    }
    config = MLAConfig(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: MLA(config, _rope(config.qk_rope_head_dim, interleaved))


def _sparse_mla(index_topk: int, rope_dim: int = 4) -> Callable[[], CachedLayer]:
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
    return lambda: SparseMLA(mla, _rope(4, True), Indexer(index, _rope(4)))


def _gated(
    kind: type[GatedAttention] | type[HeadGatedAttention], **changes: Any
) -> Callable[[], CachedLayer]:
    config = AttentionConfig(**{"hidden_size": HIDDEN, **_SIZES, **changes})
    return lambda: kind(config, _rope(6))


def _gated_mla() -> Callable[[], CachedLayer]:
    config = MLAConfig(
        hidden_size=HIDDEN,
        num_attention_heads=3,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
    )
    return lambda: GatedMLA(config, None)


def _mamba1(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"intermediate_size": 20, "state_size": 5, "time_step_rank": 3}
    config = Mamba1Config(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: Mamba1(config)


def _mamba1_heads(num_heads: int, **changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"intermediate_size": 20, "state_size": 5, "time_step_rank": 3}
    config = Mamba1Config(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: Mamba1Heads(config, num_heads)


def _mamba2(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"num_heads": 4, "head_dim": 6, "state_size": 5, "n_groups": 2, "chunk_size": 8}
    config = Mamba2Config(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: Mamba2(config)


def _rg_lru(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"hidden_size": HIDDEN, "lru_width": 20, "num_heads": 4}
    return lambda: RecurrentBlock(RecurrentBlockConfig(**{**sizes, **changes}))


def _short_conv(**changes: Any) -> Callable[[], CachedLayer]:
    return lambda: ShortConv(ShortConvConfig(hidden_size=HIDDEN, **changes))


def _gated_delta_net(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 6, "value_head_dim": 5}
    config = GatedDeltaNetConfig(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: GatedDeltaNet(config)


def _kda(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"num_heads": 4, "head_dim": 6}
    config = KimiDeltaAttentionConfig(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: KimiDeltaAttention(config)


def _lightning(**changes: Any) -> Callable[[], CachedLayer]:
    sizes = {"num_attention_heads": 4, "head_dim": 6}
    config = LightningAttentionConfig(**{"hidden_size": HIDDEN, **sizes, **changes})
    return lambda: LightningAttention(config)


LAYERS = (
    LayerRow("attention", _attention(_rope(6))),
    LayerRow("attention without positions", _attention(None)),
    LayerRow("attention with a norm of queries and keys", _attention(_rope(6), qk_norm_eps=1e-5)),
    LayerRow(
        "attention, all heads normed once rotated",
        _attention(_rope(6), qk_norm_eps=1e-5, qk_norm_over="heads", qk_norm_after_rope=True),
    ),
    LayerRow("attention with biases", _attention(_rope(6), attention_bias=True)),
    LayerRow("attention, one key head", _attention(_rope(6), num_key_value_heads=1)),
    LayerRow("attention, a key head a head", _attention(_rope(4), num_key_value_heads=4)),
    LayerRow("attention, large values", _attention(_rope(6), head_dim_v=9)),
    LayerRow("attention, window", _attention(_rope(6), window=Window(7))),
    LayerRow("attention, window of one token", _attention(None, window=Window(1))),
    LayerRow("attention, chunks", _attention(_rope(6), window=Window(10, chunked=True))),
    LayerRow(
        "attention, wide window, small values, sinks",
        _attention(_rope(6), window=Window(33), head_dim_v=4, sinks=True),
    ),
    LayerRow("attention, soft cap", _attention(_rope(6), softcap=1.5, scale=0.7, sinks=True)),
    LayerRow("attention, shared", _shared(qk_norm_eps=1e-5)),
    LayerRow(
        "attention, shared, all heads normed once rotated",
        _shared(qk_norm_eps=1e-5, qk_norm_over="heads", qk_norm_after_rope=True, output_bias=True),
    ),
    LayerRow("attention, shared window", _shared(window=Window(5))),
    LayerRow("gated attention", _gated(GatedAttention, qk_norm_eps=1e-5)),
    LayerRow("attention, a gate a head", _gated(HeadGatedAttention, window=Window(7))),
    LayerRow("MLA", _mla()),
    LayerRow("MLA, a gate a head, without positions", _gated_mla()),
    LayerRow("MLA with low rank queries", _mla(q_lora_rank=10, attention_bias=True)),
    LayerRow("MLA, half split rope", _mla(interleaved=False, v_head_dim=13)),
    LayerRow("MLA without a rotated part", _mla(qk_rope_head_dim=0)),
    LayerRow("MLA, grown queries, scaled latents", _mla(query_growth=_GROWTH, latent_scale=1.3)),
    LayerRow("sparse MLA", _sparse_mla(5)),
    LayerRow("sparse MLA, nothing is passed over", _sparse_mla(LONGEST)),
    LayerRow("sparse MLA of one token, without a rotated part", _sparse_mla(1, rope_dim=0)),
    LayerRow("Mamba-1", _mamba1()),
    LayerRow("Mamba-1 with inner norms", _mamba1(inner_norm_eps=1e-5)),
    LayerRow(
        "Mamba-1, inner norms without weights",
        _mamba1(inner_norm_eps=1e-5, inner_norm_weights=False),
    ),
    LayerRow("Mamba-1 in heads", _mamba1_heads(2)),
    LayerRow("Mamba-1 in heads, other biases", _mamba1_heads(4, use_bias=True, conv_kernel=2)),
    LayerRow("Mamba-1, other biases", _mamba1(use_bias=True, use_conv_bias=False, conv_kernel=2)),
    LayerRow("Mamba-2", _mamba2()),
    LayerRow("Mamba-2, limited steps", _mamba2(time_step_limit=(0.1, 0.4), chunk_size=256)),
    LayerRow("Mamba-2, norm before the gate", _mamba2(norm_before_gate=True, n_groups=4)),
    LayerRow("Mamba-2, other biases", _mamba2(use_bias=True, use_conv_bias=False, chunk_size=3)),
    LayerRow("Mamba-2, no norm, multipliers", _mamba2(gated_norm=False, multipliers=_MULTIPLIERS)),
    LayerRow("RG-LRU", _rg_lru()),
    LayerRow("RG-LRU, odd sizes", _rg_lru(lru_width=21, num_heads=3, conv_kernel=2)),
    LayerRow("short convolution", _short_conv()),
    LayerRow("short convolution, wide, with biases", _short_conv(conv_kernel=7, use_bias=True)),
    LayerRow("gated delta net", _gated_delta_net()),
    LayerRow("gated delta net, one key head", _gated_delta_net(num_key_heads=1, conv_kernel=2)),
    LayerRow("gated delta net, projections by kind", _gated_delta_net(projections="by_kind")),
    LayerRow(
        "gated delta net, projections apart, negative eigenvalues",
        _gated_delta_net(projections="apart", allow_neg_eigval=True),
    ),
    LayerRow("KDA", _kda()),
    LayerRow(
        "KDA, bounded decays, whole gates",
        _kda(low_rank_gates=False, flat_a_log=True, decay_bound=-0.3),
    ),
    LayerRow("KDA, odd sizes", _kda(num_heads=3, head_dim=7, conv_kernel=3)),
    LayerRow("lightning attention", _lightning()),
    LayerRow("lightning attention, long memory", _lightning(decay_scale=0.01, head_dim=9)),
)
BY_REASON = {row.reason: row for row in LAYERS}
ONE_OF_EACH = tuple(BY_REASON[reason] for reason in ("attention", "MLA", "Mamba-1", "Mamba-2"))
RECURRENT = tuple(row for row in LAYERS if row.kind == "state")


@torch.no_grad()
def randomise(module: nn.Module, seed: int = 0) -> None:
    """Norms, biases and time constants away from where mistakes cancel."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        parameter.copy_(_weights(name, parameter, draw))


def _weights(name: str, like: Tensor, draw: torch.Generator) -> Tensor:
    parent, _, leaf = name.rpartition(".")
    uniform = torch.rand(like.shape, generator=draw)
    normal = torch.randn(like.shape, generator=draw)
    if leaf == "A_log":  # memories from one token to hundreds
        return math.log(0.02) + math.log(100) * uniform
    if leaf == "recurrent_param":
        return 5 * uniform - 7
    if name in ("dt_bias", "dt_proj.bias", "dt_proj_bias"):
        return 4 * uniform - 4
    if "norm" in parent:
        return 0.5 + uniform
    if leaf in ("bias", "D"):
        return normal
    return normal * 1.5 / math.sqrt(like.shape[-1])
