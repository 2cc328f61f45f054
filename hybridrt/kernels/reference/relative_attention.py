"""relative_attention in plain torch."""

import torch
from jaxtyping import Float, Float32, Int, Shaped
from torch import Tensor

from hybridrt.batch import Prefill, Rows, TokenPages
from hybridrt.kernels.reference.gather import (
    Reach,
    blocks_for,
    decode_places,
    gather_row,
    gather_rows,
)
from hybridrt.kernels.reference.paged_attention import PagedKV

_MOST_SCORES = 2**24  # held at once: 64 MiB


def relative_attention(
    q: Float[Tensor, "tokens heads head_dim_k"],
    relative: Float[Tensor, "tokens heads num_profiles"],
    profiles: Float[Tensor, "num_profiles extent"],
    k: Shaped[Tensor, "blocks kv_heads block_size head_dim_k"],
    v: Shaped[Tensor, "blocks kv_heads block_size head_dim_v"],
    pages: TokenPages,
    batch: Rows,
    scale: float,
    window: int | None = None,
    k_scale: Float32[Tensor, "..."] | None = None,
    v_scale: Float32[Tensor, "..."] | None = None,
    sinks: Float[Tensor, "tokens heads"] | None = None,
) -> Float[Tensor, "tokens heads head_dim_v"]:
    """See `hybridrt.kernels.relative_attention`."""
    cache, reach = PagedKV(k, v, k_scale, v_scale), Reach(window)
    if sinks is None:
        sinks = q.new_full(q.shape[:2], -torch.inf)
    out = q.new_zeros(q.shape[0], q.shape[1], v.shape[-1])
    n = batch.num_decodes
    if n:
        places = decode_places(pages, batch, cache.block_size, reach)
        keys, values = cache.read(lambda part: gather_rows(part, places), q.dtype)
        position = batch.seq_lens[:n] - 1
        begin = torch.zeros_like(position)
        if window is not None:
            begin = reach.first_visible_of(position) // cache.block_size * cache.block_size
        token = begin[:, None] + torch.arange(places.count, device=q.device)
        distance = (position[:, None] - token)[:, None]
        queries = q[:n, None], relative[:n, None], sinks[:n, None]
        out[:n] = _attend(*queries, profiles, keys, values, distance, scale, window)[:, 0]
    for row in batch.prefills:
        tokens = slice(row.start, row.stop)
        queries = q[tokens], relative[tokens], sinks[tokens]
        out[tokens] = _attend_chunk(*queries, profiles, cache, pages, row, scale, reach)
    return out


def _attend_chunk(
    q: Float[Tensor, "queries heads head_dim_k"],
    relative: Float[Tensor, "queries heads num_profiles"],
    sinks: Float[Tensor, "queries heads"],
    profiles: Float[Tensor, "num_profiles extent"],
    cache: PagedKV,
    pages: TokenPages,
    row: Prefill,
    scale: float,
    reach: Reach,
) -> Float[Tensor, "queries heads head_dim_v"]:
    """A few queries of a row at a time, each lot over the keys in its reach."""
    first, seq_len = reach.first_visible(row.context), row.context + len(q)
    begin = first // cache.block_size * cache.block_size
    blocks = pages.page_table[row.row, : blocks_for(seq_len - begin, cache.block_size)]
    inside = slice(first - begin, seq_len - begin)
    k, v = cache.read(lambda part: gather_row(part, blocks, inside)[None], q.dtype)
    parts: list[Tensor] = []
    lot = max(1, _MOST_SCORES // (q.shape[1] * (seq_len - first)))
    for start in range(row.context, seq_len, lot):
        stop = min(start + lot, seq_len)
        seen = slice(reach.first_visible(start) - first, stop - first)
        token = torch.arange(first, seq_len, device=q.device)[seen]
        distance = torch.arange(start, stop, device=q.device)[:, None] - token
        mine = slice(start - row.context, stop - row.context)
        queries = q[None, mine], relative[None, mine], sinks[None, mine]
        keys, values = k[:, :, seen], v[:, :, seen]
        found = _attend(*queries, profiles, keys, values, distance[None], scale, reach.window)
        parts.append(found[0])
    return torch.cat(parts)


def _attend(
    q: Float[Tensor, "rows queries heads head_dim_k"],
    relative: Float[Tensor, "rows queries heads num_profiles"],
    sinks: Float[Tensor, "rows queries heads"],
    profiles: Float[Tensor, "num_profiles extent"],
    k: Float[Tensor, "rows kv_heads tokens head_dim_k"],
    v: Float[Tensor, "rows kv_heads tokens head_dim_v"],
    distance: Int[Tensor, "rows queries tokens"],
    scale: float,
    window: int | None,
) -> Float[Tensor, "rows queries heads head_dim_v"]:
    """`distance` is how many tokens a key stands before a query; below 0 it is not seen."""
    groups = (k.shape[1], -1)
    scores = torch.einsum("rqkgd,rktd->rqkgt", q.float().unflatten(2, groups), k.float()) * scale
    bias = _biases(relative, profiles[:, : k.shape[2]], distance)
    scores = scores + bias.unflatten(2, groups)
    seen = distance >= 0
    if window is not None:
        seen = seen & (distance < window)
    scores = scores.masked_fill(~seen[:, :, None, None], -torch.inf)
    nothing = sinks.float().unflatten(2, groups)[..., None]
    weights = torch.cat([scores, nothing], dim=-1).softmax(-1)[..., :-1]
    return torch.einsum("rqkgt,rktd->rqkgd", weights, v.float()).flatten(2, 3).to(q.dtype)


def _biases(
    relative: Float[Tensor, "rows queries heads num_profiles"],
    profiles: Float[Tensor, "num_profiles extent"],
    distance: Int[Tensor, "rows queries tokens"],
) -> Float32[Tensor, "rows queries heads tokens"]:
    """What is added to the scores."""
    by_distance = relative.float() @ profiles.float()
    last = profiles.shape[1] - 1
    near = distance.clamp(0, last).long()[:, :, None].expand(-1, -1, relative.shape[2], -1)
    return by_distance.gather(-1, near).masked_fill((distance > last)[:, :, None], 0)
