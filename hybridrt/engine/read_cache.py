"""What a layer's cache holds of a sequence, as plain tensors."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.cache.page_table import PageTable
from hybridrt.cache.plan import GroupPlan, LayerPlan
from hybridrt.cache.pool import Pool
from hybridrt.kernels.quantise import dequantise, dequantise_groups
from hybridrt.layers.attention import Attention
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.compressed_attention import CompressedAttention
from hybridrt.layers.compressor import ChunkInputs, EntryCache
from hybridrt.layers.indexed_attention import IndexedAttention
from hybridrt.layers.mla import MLA
from hybridrt.layers.sparse_mla import SparseMLA


def read_layer(
    layer: CachedLayer, plan: LayerPlan, pool: Pool, table: PageTable | None, num_tokens: int
) -> dict[str, Tensor]:
    """Copies of what a layer holds of a sequence's first `num_tokens` tokens.

    Attention: `k` (behind the rotary embedding) and `v`, `[tokens, kv_heads, dim]`; MLA: `c_kv`
    and `k_pe`, `[tokens, dim]`; of both `k_index` of an indexer; as far as the layer has them, all
    in the model's dtype whatever the cache's. A layer with a
    window has those in the pages that it still holds, and `positions: int64[tokens]` says
    which these are. Compressed tokens and what they are made of, `entries`, `inputs` and `kv`,
    are `[entries, dim]` and `[tokens, dim]`. Other layers have their states, as they declare
    them. `table` is None for a sequence that holds nothing yet: no tokens, and states of zeros.
    """
    if plan.page_size is None:
        return _read_states(layer, plan, pool, table)
    group = pool.plan.group(plan.group)
    blocks, first = _blocks(group, table, num_tokens, pool.bytes.device)
    if isinstance(layer, EntryCache):
        return {"entries": _read_entries(layer, blocks, num_tokens)}
    found = {name: x[: num_tokens - first] for name, x in _read_tokens(layer, blocks).items()}
    if plan.window is not None:
        found["positions"] = torch.arange(first, num_tokens, device=blocks.device)
    return found


def _read_states(
    layer: CachedLayer, plan: LayerPlan, pool: Pool, table: PageTable | None
) -> dict[str, Tensor]:
    states = layer.cache_spec.states
    views = layer.cache_spec.unpack(pool.layer_pages(plan))
    if table is None:
        return {s.name: view.new_zeros(s.shape) for s, view in zip(states, views, strict=True)}
    page = table.physical_ids[plan.part]
    return {state.name: view[page].clone() for state, view in zip(states, views, strict=True)}


def _blocks(
    group: GroupPlan, table: PageTable | None, num_tokens: int, device: torch.device
) -> tuple[Int64[Tensor, " blocks"], int]:
    """The kernel blocks that are held, and the first token in them."""
    assert group.page_size is not None and group.kernel_block_size is not None
    if table is None:
        return torch.empty(0, dtype=torch.int64, device=device), num_tokens
    first = table.num_released * group.page_size
    count = -(-(num_tokens - first) // group.kernel_block_size)
    ids = torch.from_numpy(table.kernel_ids.array[:count].astype("int64"))
    return ids.to(device), first


def _read_tokens(layer: CachedLayer, blocks: Int64[Tensor, " blocks"]) -> dict[str, Tensor]:
    if isinstance(layer, Attention):
        return _read_attention(layer, blocks)
    if isinstance(layer, ChunkInputs):
        return {"inputs": layer.inputs[blocks].flatten(0, 1)}
    if isinstance(layer, CompressedAttention):
        return {"kv": layer.kv[blocks].flatten(0, 1)}
    assert isinstance(layer, MLA), f"{layer.name}: nobody can read {layer.mixer}"
    return _read_mla(layer, blocks)


def _read_entries(
    layer: EntryCache, blocks: Int64[Tensor, " blocks"], num_tokens: int
) -> Float[Tensor, "entries dim"]:
    entries = torch.arange(num_tokens // layer.grid.rate, device=blocks.device)
    which, places = layer.grid.locate(entries)
    return layer.entries[blocks[which], places]


def _read_attention(layer: Attention, blocks: Int64[Tensor, " blocks"]) -> dict[str, Tensor]:
    cached, found = layer.cached, {}
    for name, values, scale in (
        ("k", cached.k, cached.k_scale),
        ("v", cached.v, cached.v_scale),
    ):
        tokens = values[blocks].transpose(1, 2).flatten(0, 1)
        if scale is not None:
            # One of each head, or one of each token and head beside the values.
            by_token = scale if scale.dim() == 1 else scale[blocks].transpose(1, 2).flatten(0, 1)
            tokens = dequantise(tokens, by_token[..., None], layer.dtype)
        found[name] = tokens
    if isinstance(layer, IndexedAttention):
        found["k_index"] = layer.k_index[blocks].flatten(0, 1)
    return found


def _read_mla(layer: MLA, blocks: Int64[Tensor, " blocks"]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    is_sparse = isinstance(layer, SparseMLA)
    if not is_sparse or layer.shares_latents_of is None:
        c_kv = layer.c_kv[blocks].flatten(0, 1)
        if layer.c_kv_scale is not None:
            c_kv = dequantise_groups(c_kv, layer.c_kv_scale[blocks].flatten(0, 1), layer.dtype)
        found["c_kv"] = c_kv
        if layer.config.qk_rope_head_dim:
            found["k_pe"] = layer.k_pe[blocks].flatten(0, 1).to(layer.dtype)
    if is_sparse and layer.caches_keys:
        found["k_index"] = layer.k_index[blocks].flatten(0, 1)
    return found


def read_tokens(
    layer: CachedLayer, plan: LayerPlan, pool: Pool, table: PageTable | None, start: int, stop: int
) -> dict[str, Tensor]:
    """What `read_layer` gives of the tokens `start` to `stop - 1`, all of which are held.

    Of compressed tokens it has the entries that end with one of them.
    """
    group = pool.plan.group(plan.group)
    blocks, first = _blocks(group, table, stop, pool.bytes.device)
    if isinstance(layer, EntryCache):
        return {"entries": _read_entries(layer, blocks, stop)[start // layer.grid.rate :]}
    assert group.kernel_block_size is not None and first <= start, (plan.name, first, start)
    skipped = (start - first) // group.kernel_block_size
    inside = slice(start - first - skipped * group.kernel_block_size, None)
    found = _read_tokens(layer, blocks[skipped:])
    return {name: x[inside][: stop - start] for name, x in found.items()}
