"""paged_attention in plain torch: gather the pages, then attend."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.reference.gather import (
    Reach,
    blocks_for,
    decode_places,
    gather_row,
    gather_rows,
)
from hybridrt.kernels.reference.quantise import dequantise
from hybridrt.kernels.reference.softmax_attention import (
    CausalAttention,
    Softmax,
    attend_once,
    causal_attention,
)

Gather = Callable[[Tensor], Tensor]
"""Takes a cache `[blocks, heads, block_size, dim]` to the tokens `[..., heads, tokens, dim]`."""


class PagedKV:
    """Keys and values in pages, and what they are multiplied by where they are quantised."""

    def __init__(
        self,
        k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"],
        v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"],
        k_scale: Float32[Tensor, "..."] | None,
        v_scale: Float32[Tensor, "..."] | None,
    ) -> None:
        self._k, self._v = k, v
        self._both = side_by_side(k, v)
        self._k_scale, self._v_scale = k_scale, v_scale
        self.block_size = k.shape[2]
        self.num_heads = k.shape[1]
        self.numbers_of_a_token = self.num_heads * (k.shape[-1] + v.shape[-1])

    def heads(self, some: slice) -> "PagedKV":
        """Some of the heads."""
        scales = (self._k_scale, self._v_scale)
        # One a head, or in pages as keys are.
        k_scale, v_scale = (
            scale if scale is None else scale[some] if scale.dim() == 1 else scale[:, some]
            for scale in scales
        )
        return PagedKV(self._k[:, some], self._v[:, some], k_scale, v_scale)

    def read(self, gather: Gather, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The keys and the values that `gather` brings; both at once, if they are one view."""
        if self._both is None:
            k, v = gather(self._k), gather(self._v)
        else:
            k, v = gather(self._both).tensor_split([self._k.shape[-1]], dim=-1)
        return _plain(k, self._k_scale, gather, dtype), _plain(v, self._v_scale, gather, dtype)


def paged_attention(
    q: Float[Tensor, "tokens heads head_dim_k"],
    k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    window: int | None = None,
    chunked: bool = False,
    sinks: Float[Tensor, " heads"] | None = None,
    softcap: float | None = None,
    k_scale: Float32[Tensor, "..."] | None = None,
    v_scale: Float32[Tensor, "..."] | None = None,
) -> Float[Tensor, "tokens heads head_dim_v"]:
    """See `hybridrt.kernels.paged_attention`."""
    cache, reach = PagedKV(k, v, k_scale, v_scale), Reach(window, chunked)
    softmax = Softmax(scale, sinks, softcap)
    out = q.new_empty(q.shape[0], q.shape[1], v.shape[-1])
    n = batch.num_decodes
    if n:
        out[:n] = attend_decodes(q[:n], cache, pages, batch, softmax, reach)
    attend_chunks(q, cache, pages, batch, softmax, reach, out)
    return out


def attend_decodes(
    q: Float[Tensor, "rows heads head_dim_k"],
    cache: PagedKV,
    pages: TokenPages,
    batch: Rows,
    softmax: Softmax,
    reach: Reach,
) -> Float[Tensor, "rows heads head_dim_v"]:
    """The decode rows of a batch, `q` theirs."""
    places = decode_places(pages, batch, cache.block_size, reach)
    k, v = cache.read(lambda part: gather_rows(part, places), q.dtype)
    return attend_once(q, k, v, places.mask, softmax)


def attend_chunks(
    q: Float[Tensor, "tokens heads head_dim_k"],
    cache: PagedKV,
    pages: TokenPages,
    batch: Rows,
    softmax: Softmax,
    reach: Reach,
    out: Float[Tensor, "tokens heads head_dim_v"],
) -> None:
    """Fills `out` behind the decode rows: what prefill rows attend to, and zeros for padding."""
    stop = batch.num_decodes
    for row in batch.prefills:
        stop = row.stop
        tokens = slice(row.start, stop)
        out[tokens] = attend_chunk(q[tokens], cache, pages, row, softmax, reach)
    out[stop:] = 0


def attend_chunk(
    q: Float[Tensor, "queries heads head_dim_k"],
    cache: PagedKV,
    pages: TokenPages,
    row: Prefill,
    softmax: Softmax,
    reach: Reach,
    attend: CausalAttention = causal_attention,
) -> Float[Tensor, "queries heads head_dim_v"]:
    """One prefill row, `q` its queries."""
    block_size = cache.block_size
    first, seq_len = reach.first_visible(row.context), row.context + q.shape[0]
    begin = first // block_size * block_size
    blocks = pages.page_table[row.row, : blocks_for(seq_len - begin, block_size)]
    places = slice(first - begin, seq_len - begin)
    k, v = cache.read(lambda part: gather_row(part, blocks, places), q.dtype)
    return attend(q.transpose(0, 1), k, v, softmax, reach, first).transpose(0, 1)


def side_by_side(
    k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"],
) -> Shaped[Tensor, "blocks kv_heads block_size content"] | None:
    """The view of which `k` and `v` are the first and the last part of the last axis, if any."""
    (*outer, width), strides = k.shape, k.stride()
    same = k.dtype == v.dtype and [*v.shape[:-1]] == outer and v.stride() == strides
    distance = v.data_ptr() - k.data_ptr()
    if not same or strides[-1] != 1 or distance != width * k.element_size():
        return None
    return k.as_strided((*outer, width + v.shape[-1]), strides)


def _plain(
    tokens: Shaped[Tensor, "*rows kv_heads tokens dim"],
    scale: Float32[Tensor, "..."] | None,
    gather: Gather,
    dtype: torch.dtype,
) -> Float[Tensor, "*rows kv_heads tokens dim"]:
    """What was quantised, as numbers of `dtype`. A scale is a head's, or a token's and head's."""
    if scale is None:
        return tokens
    one_a_head = scale.dim() == 1
    return dequantise(
        tokens, scale[:, None, None] if one_a_head else gather(scale[..., None]), dtype
    )
