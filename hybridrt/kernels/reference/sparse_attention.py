"""sparse_attention in plain torch: gathers each query's own keys and values."""

import torch
from jaxtyping import Float, Float32, Int32, Shaped
from torch import Tensor

from hybridrt.batch import Rows, TokenPages
from hybridrt.kernels.reference.gather import EVERYTHING, gather_tokens
from hybridrt.kernels.reference.paged_attention import PagedKV, attend_chunk, attend_decodes
from hybridrt.kernels.reference.softmax_attention import Softmax, attend_once

_MOST_NUMBERS = 2**24  # gathered at once: 64 MiB of float32


def sparse_attention(
    q: Float[Tensor, "tokens heads head_dim_k"],
    k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"],
    selected: Int32[Tensor, "tokens groups width"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    k_scale: Float32[Tensor, "..."] | None = None,
    v_scale: Float32[Tensor, "..."] | None = None,
) -> Float[Tensor, "tokens heads head_dim_v"]:
    """See `hybridrt.kernels.sparse_attention`."""
    cache, softmax, width = PagedKV(k, v, k_scale, v_scale), Softmax(scale), selected.shape[2]
    out = q.new_zeros(q.shape[0], q.shape[1], v.shape[-1])
    n = batch.num_decodes
    if n:
        if int(batch.context_lens[:n].max()) < width:
            out[:n] = attend_decodes(q[:n], cache, pages, batch, softmax, EVERYTHING)
        else:
            out[:n] = _attend(q[:n], cache, selected[:n], pages.page_table[:n], softmax)
    for row in batch.prefills:
        tokens, queries = slice(row.start, row.stop), row.stop - row.start
        if row.context + queries <= width:
            out[tokens] = attend_chunk(q[tokens], cache, pages, row, softmax, EVERYTHING)
        else:
            table = pages.page_table[row.row].expand(queries, -1)
            out[tokens] = _attend(q[tokens], cache, selected[tokens], table, softmax)
    return out


def _attend(
    q: Float[Tensor, "queries heads head_dim_k"],
    cache: PagedKV,
    selected: Int32[Tensor, "queries groups width"],
    table: Int32[Tensor, "queries max_blocks"],
    softmax: Softmax,
) -> Float[Tensor, "queries heads head_dim_v"]:
    """A few queries at a time, each with the blocks of its own sequence."""
    groups, width = selected.shape[1:]
    lot = max(1, _MOST_NUMBERS // (width * cache.numbers_of_a_token))
    heads, kv_heads = q.shape[1] // groups, cache.num_heads // groups
    parts: list[Tensor] = []
    for start in range(0, len(q), lot):
        part = slice(start, start + lot)
        found: list[Tensor] = []
        for group in range(groups):
            places = selected[part, group]
            queries = q[part, group * heads : (group + 1) * heads]
            of_group = cache.heads(slice(group * kv_heads, (group + 1) * kv_heads))
            found.append(_attend_lot(queries, of_group, places, table[part], softmax))
        parts.append(torch.cat(found, dim=1))
    return torch.cat(parts)


def _attend_lot(
    q: Float[Tensor, "queries heads head_dim_k"],
    cache: PagedKV,
    selected: Int32[Tensor, "queries width"],
    table: Int32[Tensor, "queries max_blocks"],
    softmax: Softmax,
) -> Float[Tensor, "queries heads head_dim_v"]:
    positions = selected.clamp(min=0).long()

    def gather(part: Tensor) -> Tensor:
        return gather_tokens(part.transpose(1, 2), table, positions).transpose(1, 2)

    k, v = cache.read(gather, q.dtype)
    return attend_once(q, k, v, selected >= 0, softmax)
