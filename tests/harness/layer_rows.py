"""Every cached layer, small, with weights at which mistakes show."""

from collections.abc import Callable
from dataclasses import dataclass

from hybridrt.cache.spec import Window
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.gated_attention import GatedAttention, HeadGatedAttention
from hybridrt.layers.mla import QueryGrowth
from hybridrt.layers.residual_conv import ResidualConv
from hybridrt.layers.rwkv import ChannelMix, TimeMix
from tests.harness.small_layers import (
    HIDDEN,
    LONGEST,
    OwnDynamicConv,
    attention,
    gated,
    gated_delta_net,
    gated_mla,
    indexed,
    kda,
    lightning,
    mamba1,
    mamba1_heads,
    mamba2,
    mla,
    peak_indexed,
    relative,
    rg_lru,
    rotary,
    shared,
    short_conv,
    sparse_mla,
    xlstm,
)

_GROWTH = QueryGrowth(beta=0.4, length=6)
_MULTIPLIERS = (0.8, 1.3, 0.7, 1.2, 1.5)


@dataclass(frozen=True)
class LayerRow:
    """One layer, and why it is there."""

    reason: str
    make: Callable[[], CachedLayer]

    @property
    def kind(self) -> str:
        return self.make().cache_spec.kind


LAYERS = (
    LayerRow("attention", attention(rotary(6))),
    LayerRow("attention without positions", attention(None)),
    LayerRow("attention with a norm of queries and keys", attention(rotary(6), qk_norm_eps=1e-5)),
    LayerRow(
        "attention, all heads normed once rotated",
        attention(rotary(6), qk_norm_eps=1e-5, qk_norm_over="heads", qk_norm_after_rope=True),
    ),
    LayerRow("attention with biases", attention(rotary(6), attention_bias=True)),
    LayerRow("attention, one key head", attention(rotary(6), num_key_value_heads=1)),
    LayerRow("attention, a key head a head", attention(rotary(4), num_key_value_heads=4)),
    LayerRow("attention, large values", attention(rotary(6), head_dim_v=9)),
    LayerRow("attention, window", attention(rotary(6), window=Window(7))),
    LayerRow("attention, window of one token", attention(None, window=Window(1))),
    LayerRow("attention, chunks", attention(rotary(6), window=Window(10, chunked=True))),
    LayerRow(
        "attention, wide window, small values, sinks",
        attention(rotary(6), window=Window(33), head_dim_v=4, sinks=True),
    ),
    LayerRow("attention, soft cap", attention(rotary(6), softcap=1.5, scale=0.7, sinks=True)),
    LayerRow("attention, shared", shared(qk_norm_eps=1e-5)),
    LayerRow(
        "attention, shared, all heads normed once rotated",
        shared(qk_norm_eps=1e-5, qk_norm_over="heads", qk_norm_after_rope=True, output_bias=True),
    ),
    LayerRow("attention, shared window", shared(window=Window(5))),
    LayerRow("gated attention", gated(GatedAttention, qk_norm_eps=1e-5)),
    LayerRow("attention, a gate a head", gated(HeadGatedAttention, window=Window(7))),
    LayerRow("gated attention to selected blocks", indexed(6, 3)),
    LayerRow("gated attention to selected tokens", indexed(5, 1)),
    LayerRow("attention to blocks of each key head's own", peak_indexed(2, 3, 1)),
    LayerRow("attention to blocks by their best", peak_indexed(1, 5, 0)),
    LayerRow("MLA", mla()),
    LayerRow("MLA, a gate a head, without positions", gated_mla()),
    LayerRow("MLA with low rank queries", mla(q_lora_rank=10, attention_bias=True)),
    LayerRow("MLA, half split rope", mla(interleaved=False, v_head_dim=13)),
    LayerRow("MLA without a rotated part", mla(qk_rope_head_dim=0)),
    LayerRow("MLA, grown queries, scaled latents", mla(query_growth=_GROWTH, latent_scale=1.3)),
    LayerRow("MLA, window", mla(window=Window(7))),
    LayerRow("profiles of distances", relative()),
    LayerRow("profiles of distances, window", relative(window=Window(9), qk_norm_eps=1e-6)),
    LayerRow("sparse MLA", sparse_mla(5)),
    LayerRow("sparse MLA, nothing is passed over", sparse_mla(LONGEST)),
    LayerRow("sparse MLA, gates, sinks", sparse_mla(5, gated=True)),
    LayerRow("sparse MLA of one token, without a rotated part", sparse_mla(1, rope_dim=0)),
    LayerRow("Mamba-1", mamba1()),
    LayerRow("Mamba-1 with inner norms", mamba1(inner_norm_eps=1e-5)),
    LayerRow(
        "Mamba-1, inner norms without weights",
        mamba1(inner_norm_eps=1e-5, inner_norm_weights=False),
    ),
    LayerRow("Mamba-1 in heads", mamba1_heads(2)),
    LayerRow("Mamba-1 in heads, other biases", mamba1_heads(4, use_bias=True, conv_kernel=2)),
    LayerRow("Mamba-1, other biases", mamba1(use_bias=True, use_conv_bias=False, conv_kernel=2)),
    LayerRow("Mamba-2", mamba2()),
    LayerRow("Mamba-2, limited steps", mamba2(time_step_limit=(0.1, 0.4), chunk_size=256)),
    LayerRow("Mamba-2, norm before the gate", mamba2(norm_before_gate=True, n_groups=4)),
    LayerRow("Mamba-2, other biases", mamba2(use_bias=True, use_conv_bias=False, chunk_size=3)),
    LayerRow("Mamba-2, no norm, multipliers", mamba2(gated_norm=False, multipliers=_MULTIPLIERS)),
    LayerRow("RG-LRU", rg_lru()),
    LayerRow("RG-LRU, odd sizes", rg_lru(lru_width=21, num_heads=3, conv_kernel=2)),
    LayerRow("residual convolution", lambda: ResidualConv(HIDDEN, 4)),
    LayerRow("residual convolution, scaled", lambda: ResidualConv(HIDDEN, 2, scaled=True)),
    LayerRow("convolution that each token decides on", lambda: OwnDynamicConv(HIDDEN, 4, 6, 3)),
    LayerRow("short convolution", short_conv()),
    LayerRow("short convolution, wide, with biases", short_conv(conv_kernel=7, use_bias=True)),
    LayerRow("gated delta net", gated_delta_net()),
    LayerRow("gated delta net, one key head", gated_delta_net(num_key_heads=1, conv_kernel=2)),
    LayerRow("gated delta net, projections by kind", gated_delta_net(projections="by_kind")),
    LayerRow(
        "gated delta net, projections apart, negative eigenvalues",
        gated_delta_net(projections="apart", allow_neg_eigval=True),
    ),
    LayerRow("KDA", kda()),
    LayerRow(
        "KDA, bounded decays, whole gates",
        kda(low_rank_gates=False, flat_a_log=True, decay_bound=-0.3),
    ),
    LayerRow("KDA, odd sizes", kda(num_heads=3, head_dim=7, conv_kernel=3)),
    LayerRow("lightning attention", lightning()),
    LayerRow("RWKV", lambda: TimeMix(HIDDEN, 20)),
    LayerRow("RWKV, feed-forward", lambda: ChannelMix(HIDDEN, 31)),
    LayerRow("mLSTM", xlstm()),
    LayerRow("mLSTM, odd sizes, biases", xlstm(num_heads=3, qk_dim=15, v_dim=21, use_bias=True)),
    LayerRow("lightning attention, long memory", lightning(decay_scale=0.01, head_dim=9)),
)
BY_REASON = {row.reason: row for row in LAYERS}
ONE_OF_EACH = tuple(BY_REASON[reason] for reason in ("attention", "MLA", "Mamba-1", "Mamba-2"))
RECURRENT = tuple(row for row in LAYERS if row.kind == "state")
