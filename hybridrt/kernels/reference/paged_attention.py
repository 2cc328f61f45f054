"""paged_attention in plain torch: gather the pages, then `scaled_dot_product_attention`."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.reference.gather import blocks_for, gather_row, gather_rows, valid_tokens

QUERY_BLOCK = 512  # queries behind a context at once: bounds the mask's memory


def paged_attention(
    q: Float[Tensor, "tokens heads head_dim_k"],
    kv: Float[Tensor, "blocks kv_heads block_size content"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
) -> Float[Tensor, "tokens heads head_dim_v"]:
    """See `hybridrt.kernels.paged_attention`."""
    head_dim_v = kv.shape[-1] - q.shape[-1]
    cache = kv.transpose(0, 1)
    out = q.new_empty(q.shape[0], q.shape[1], head_dim_v)
    if batch.num_decodes:
        decodes = slice(0, batch.num_decodes)
        out[decodes] = _decode(q[decodes], cache, pages, batch, scale)
    for row in batch.prefills:
        out[row.start : row.stop] = _prefill(q[row.start : row.stop], cache, pages, row, scale)
    return out


def _decode(
    q: Float[Tensor, "rows heads head_dim_k"],
    cache: Float[Tensor, "kv_heads blocks block_size content"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
) -> Float[Tensor, "rows heads head_dim_v"]:
    """One query a row. The query heads of a group are the queries of their key head."""
    rows, _, head_dim_k = q.shape
    max_tokens = batch.longest_decode
    table = pages.page_table[:rows, : blocks_for(max_tokens, cache.shape[2])]
    valid = valid_tokens(batch.seq_lens[:rows], max_tokens)
    kv = gather_rows(cache, table, valid)
    out = scaled_dot_product_attention(
        q.unflatten(1, (cache.shape[0], -1)),
        kv[..., :head_dim_k],
        kv[..., head_dim_k:],
        attn_mask=valid[:, None, None],
        scale=scale,
    )
    return out.flatten(1, 2)


def _prefill(
    q: Float[Tensor, "queries heads head_dim_k"],
    cache: Float[Tensor, "kv_heads blocks block_size content"],
    pages: TokenPages,
    row: Prefill,
    scale: float,
) -> Float[Tensor, "queries heads head_dim_v"]:
    seq_len = row.context + q.shape[0]
    blocks = pages.page_table[row.row, : blocks_for(seq_len, cache.shape[2])]
    k, v = gather_row(cache, blocks, seq_len).tensor_split([q.shape[-1]], dim=-1)
    return causal_attention(q.transpose(0, 1), k, v, scale).transpose(0, 1)


def causal_attention(
    q: Float[Tensor, "heads queries head_dim_k"],
    k: Float[Tensor, "kv_heads tokens head_dim_k"],
    v: Float[Tensor, "kv_heads tokens head_dim_v"],
    scale: float,
) -> Float[Tensor, "heads queries head_dim_v"]:
    """Attends from the last `queries` of `tokens`, each to all tokens up to itself."""
    queries, tokens = q.shape[1], k.shape[1]
    grouped = q.shape[0] != k.shape[0]
    if queries == tokens:
        return scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=grouped
        )[0]
    parts: list[Tensor] = []
    for start in range(0, queries, QUERY_BLOCK):
        part = q[:, start : start + QUERY_BLOCK]
        last = tokens - queries + start + part.shape[1]
        mask = torch.ones(part.shape[1], last, dtype=torch.bool, device=q.device)
        mask = mask.tril(last - part.shape[1])
        parts.append(
            scaled_dot_product_attention(
                part[None],
                k[None, :, :last],
                v[None, :, :last],
                attn_mask=mask,
                scale=scale,
                enable_gqa=grouped,
            )[0]
        )
    return torch.cat(parts, dim=1)
