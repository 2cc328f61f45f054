"""What a layer's cache holds of a sequence, as plain tensors: what is where, to read and to write.

Rows are what a layer of a token kind has of one token each, numbered as the sequence's tokens;
those of a compressor's `entries` are numbered as the chunks. A layer of the kind `state` has
whole tensors instead.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from hybridrt.cache.page_table import PageTable, PhysicalId
from hybridrt.cache.plan import LayerPlan
from hybridrt.cache.pool import Pool
from hybridrt.cache.spec import State
from hybridrt.kernels.quantise import (
    dequantise,
    dequantise_groups,
    quantise_e4m3,
    quantise_e4m3_groups,
    quantise_int8,
)
from hybridrt.kernels.write_pages import write_pages
from hybridrt.layers.attention import Attention
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.compressed_attention import CompressedAttention
from hybridrt.layers.compressor import ChunkInputs, EntryCache
from hybridrt.layers.indexed_attention import IndexedAttention
from hybridrt.layers.mla import MLA
from hybridrt.layers.sparse_mla import SparseMLA

POSITIONS = "positions"


@dataclass(frozen=True, slots=True)
class Field:
    """A tensor that a layer holds, as it is read: its axes, shape and dtype.

    With `rows` the first axis counts rows, and `shape` is that of one.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: bool


class LayerCache(ABC):
    """What one layer holds of one sequence: read and written in place, nothing is kept."""

    fields: Mapping[str, Field]
    rows: range
    """The rows that are held; none for states."""

    @abstractmethod
    def read(self, name: str, rows: Int64[Tensor, " rows"] | None = None) -> Tensor:
        """A copy of a tensor, or of these rows of it."""

    @abstractmethod
    def write(self, name: str, values: Tensor, rows: Int64[Tensor, " rows"] | None = None) -> None:
        """Replaces a tensor, or these rows; values become what the cache's format makes of them."""

    def read_all(self) -> dict[str, Tensor]:
        """Copies of everything."""
        return {name: self.read(name) for name in self.fields}


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where the rows of one tensor stand: `[blocks, places, ...]`, with scales if it is quantised.

    A `scale` is one of each head, or stands beside the values, as the format has it.
    """

    values: Shaped[Tensor, "blocks places *dims"]
    scale: Shaped[Tensor, "..."] | None = None
    format: Literal["plain", "int8", "e4m3", "e4m3 groups"] = "plain"


class TokenCache(LayerCache):
    """A layer of a token kind. `table` is None for a sequence that holds nothing yet."""

    def __init__(
        self,
        layer: CachedLayer,
        plan: LayerPlan,
        pool: Pool,
        table: PageTable | None,
        num_tokens: int,
    ) -> None:
        assert plan.page_size is not None and plan.kernel_block_size is not None
        self._device = pool.bytes.device
        self._dtype = layer.dtype
        self._block_size = plan.kernel_block_size
        self._grid = layer.grid if isinstance(layer, EntryCache) else None
        self._stored, axes = _stored(layer)
        self._has_window = plan.window is not None
        released = 0 if table is None else table.num_released
        self._blocks_per_page = plan.page_size // plan.kernel_block_size
        self._first_block = released * self._blocks_per_page
        first = num_tokens if table is None else released * plan.page_size
        self.rows = range(first, num_tokens)
        if self._grid is not None:
            self.rows = range(num_tokens // self._grid.rate)
        ids = () if table is None else table.kernel_ids.array.astype("int64")
        self._blocks = torch.as_tensor(ids, dtype=torch.int64, device=self._device)
        fields: dict[str, Field] = {}
        for name, stored in self._stored.items():
            shape = tuple(stored.values.shape[2:])
            fields[name] = Field(name, axes[name], shape, self._dtype, rows=True)
        if self._has_window:
            fields[POSITIONS] = Field(POSITIONS, ("tokens",), (), torch.int64, rows=True)
        self.fields = fields

    def read(self, name: str, rows: Int64[Tensor, " rows"] | None = None) -> Tensor:
        """A copy of a tensor's rows, in the model's dtype: quantised ones as they are read back."""
        rows = self._all_rows() if rows is None else rows
        if name == POSITIONS:
            return rows
        stored = self._stored[name]
        block, place = self._locate(rows)
        values, scale = stored.values[block, place], stored.scale
        if stored.format == "plain":
            return values.to(self._dtype)
        assert scale is not None
        if stored.format == "e4m3 groups":
            return dequantise_groups(values, scale[block, place], self._dtype)
        by_row = scale if stored.format == "e4m3" else scale[block, place]
        return dequantise(values, by_row[..., None], self._dtype)

    def write(self, name: str, values: Tensor, rows: Int64[Tensor, " rows"] | None = None) -> None:
        """Writes rows as the layer writes those of new tokens, quantised where it does that."""
        stored = self._stored[name]
        block, place = self._locate(self._all_rows() if rows is None else rows)
        slots = block * stored.values.shape[1] + place
        scale = stored.scale
        if stored.format == "e4m3":
            assert scale is not None
            values = quantise_e4m3(values, scale)
        elif scale is not None:
            quantise = quantise_int8 if stored.format == "int8" else quantise_e4m3_groups
            values, by_row = quantise(values)
            write_pages(by_row, scale, slots)
        write_pages(values.to(stored.values.dtype), stored.values, slots)

    def pages_of(self, rows: Int64[Tensor, " rows"]) -> list[int]:
        """The numbers, in token order, of the pages in which these rows stand."""
        blocks = rows // self._block_size if self._grid is None else self._grid.locate(rows)[0]
        return sorted(set((blocks // self._blocks_per_page).tolist()))

    def _all_rows(self) -> Int64[Tensor, " rows"]:
        return torch.arange(self.rows.start, self.rows.stop, device=self._device)

    def _locate(
        self, rows: Int64[Tensor, " rows"]
    ) -> tuple[Int64[Tensor, " rows"], Int64[Tensor, " rows"]]:
        """The kernel blocks of these rows, and their places in them."""
        if self._grid is not None:
            blocks, places = self._grid.locate(rows)
        else:
            blocks, places = rows // self._block_size, rows % self._block_size
        return self._blocks[blocks - self._first_block], places


class StateCache(LayerCache):
    """A layer of the kind `state`, in one page. None: as before the first token, zeros."""

    rows = range(0)

    def __init__(
        self, layer: CachedLayer, plan: LayerPlan, pool: Pool, page: PhysicalId | None
    ) -> None:
        states = layer.cache_spec.states
        views = layer.cache_spec.unpack(pool.layer_pages(plan))
        self._views = {state.name: view for state, view in zip(states, views, strict=True)}
        self._page = page
        self.fields = {
            s.name: Field(s.name, _axes(s), s.shape, s.dtype, rows=False) for s in states
        }

    def read(self, name: str, rows: Int64[Tensor, " rows"] | None = None) -> Tensor:
        """A copy of a whole state."""
        assert rows is None, "a state has no rows"
        view = self._views[name]
        return view.new_zeros(view.shape[1:]) if self._page is None else view[self._page].clone()

    def write(self, name: str, values: Tensor, rows: Int64[Tensor, " rows"] | None = None) -> None:
        """Replaces a whole state."""
        assert rows is None and self._page is not None, "a state has no rows, and needs a page"
        self._views[name][self._page].copy_(values)


def _axes(state: State) -> tuple[str, ...]:
    """Names of a state's axes, or their numbers where its layer gives none."""
    return state.axes or tuple(f"axis_{number}" for number in range(len(state.shape)))


def open_cache(
    layer: CachedLayer, plan: LayerPlan, pool: Pool, table: PageTable | None, num_tokens: int
) -> LayerCache:
    """What a layer holds of a sequence's first `num_tokens` tokens.

    `table` is None for a sequence that holds nothing yet: no tokens, and states of zeros.
    """
    if plan.page_size is None:
        page = None if table is None else table.physical_ids[plan.part]
        return StateCache(layer, plan, pool, page)
    return TokenCache(layer, plan, pool, table, num_tokens)


def _stored(layer: CachedLayer) -> tuple[dict[str, _Stored], dict[str, tuple[str, ...]]]:
    """Where a layer of a token kind has its tensors, and the names of their axes."""
    if isinstance(layer, Attention):
        return _stored_attention(layer)
    if isinstance(layer, EntryCache):
        return {"entries": _Stored(layer.entries)}, {"entries": ("entries", "head_dim")}
    if isinstance(layer, ChunkInputs):
        return {"inputs": _Stored(layer.inputs)}, {"inputs": ("tokens", "values_and_gates")}
    if isinstance(layer, CompressedAttention):
        return {"kv": _Stored(layer.kv)}, {"kv": ("tokens", "head_dim")}
    assert isinstance(layer, MLA), f"{layer.name}: nobody can read {layer.mixer}"
    return _stored_mla(layer)


def _stored_attention(
    layer: Attention,
) -> tuple[dict[str, _Stored], dict[str, tuple[str, ...]]]:
    cached, stored = layer.cached, {}
    for name, values, scale in (
        ("k", cached.k, cached.k_scale),
        ("v", cached.v, cached.v_scale),
    ):
        by_token = values.transpose(1, 2)
        if scale is None:
            stored[name] = _Stored(by_token)
        elif scale.dim() == 1:
            stored[name] = _Stored(by_token, scale, "e4m3")
        else:
            stored[name] = _Stored(by_token, scale.transpose(1, 2), "int8")
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(stored, ("tokens", "kv_heads", "head_dim"))
    if isinstance(layer, IndexedAttention):
        stored["k_index"], axes["k_index"] = _Stored(layer.k_index), ("tokens", "index_dim")
    return stored, axes


def _stored_mla(layer: MLA) -> tuple[dict[str, _Stored], dict[str, tuple[str, ...]]]:
    stored: dict[str, _Stored] = {}
    is_sparse = isinstance(layer, SparseMLA)
    if not is_sparse or layer.shares_latents_of is None:
        scale = layer.c_kv_scale
        stored["c_kv"] = _Stored(layer.c_kv, scale, "plain" if scale is None else "e4m3 groups")
        if layer.config.qk_rope_head_dim:
            stored["k_pe"] = _Stored(layer.k_pe)
    if is_sparse and layer.caches_keys:
        stored["k_index"] = _Stored(layer.k_index)
    dims = {"c_kv": "kv_lora_rank", "k_pe": "rope_dim", "k_index": "index_dim"}
    return stored, {name: ("tokens", dims[name]) for name in stored}


def read_tokens(
    layer: CachedLayer, plan: LayerPlan, pool: Pool, table: PageTable | None, start: int, stop: int
) -> dict[str, Tensor]:
    """What a layer of a token kind holds of the tokens `start` to `stop - 1`, all of them held.

    Of compressed tokens it has the entries that end with one of them.
    """
    cache = TokenCache(layer, plan, pool, table, stop)
    first = start // layer.grid.rate if isinstance(layer, EntryCache) else start
    assert cache.rows.start <= first, (plan.name, cache.rows, first)
    rows = torch.arange(first, cache.rows.stop, device=pool.bytes.device)
    return {name: cache.read(name, rows) for name in cache.fields if name != POSITIONS}
