"""Attention over pages against attention over a sequence, one query and head at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.cache.spec import Window
from hybridrt.kernels.backend import AttentionBackend
from hybridrt.kernels.paged_attention import paged_attention
from hybridrt.kernels.reference import softmax_attention
from hybridrt.kernels.reference.paged_attention import side_by_side
from hybridrt.kernels.reference.softmax_attention import QUERY_BLOCK
from tests.harness.allocations import nothing_larger_than
from tests.harness.batches import (
    EXTREMES,
    TOKENS,
    Ragged,
    Row,
    draw_tables,
    in_company,
    make_batch,
    ragged,
)
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_right


@dataclass(frozen=True)
class Sizes:
    """Heads and dimensions, and which scores there are. `layout` is of a kernel block.

    `apart`: values are not behind the keys of one view.
    """

    heads: int = 4
    kv_heads: int = 2
    head_dim_k: int = 16
    head_dim_v: int = 16
    block_size: int = 4
    layout: str = "HND"
    window: Window | None = None
    sinks: bool = False
    softcap: float | None = None
    apart: bool = False

    def first_visible(self, position: int) -> int:
        return 0 if self.window is None else self.window.first_visible(position)


PLAIN = Sizes()
SIZES = (
    PLAIN,
    replace(PLAIN, layout="NHD"),
    replace(PLAIN, kv_heads=4),  # a head for each query head
    replace(PLAIN, kv_heads=1),  # one for all
    replace(PLAIN, heads=1, kv_heads=1),
    replace(PLAIN, heads=6),  # three query heads a key head
    replace(PLAIN, head_dim_v=8),
    replace(PLAIN, head_dim_k=8, head_dim_v=24),
    replace(PLAIN, head_dim_k=5, head_dim_v=3),
    replace(PLAIN, block_size=1),
    replace(PLAIN, block_size=16),
    replace(PLAIN, block_size=64, layout="NHD"),
    replace(PLAIN, apart=True, head_dim_v=24),
    replace(PLAIN, apart=True, layout="NHD"),
    replace(PLAIN, window=Window(1)),
    replace(PLAIN, window=Window(6)),
    replace(PLAIN, window=Window(6), block_size=1, layout="NHD"),
    replace(PLAIN, window=Window(16), block_size=16, head_dim_v=8),
    replace(PLAIN, window=Window(1, chunked=True)),
    replace(PLAIN, window=Window(6, chunked=True)),
    replace(PLAIN, window=Window(16, chunked=True), layout="NHD"),
    replace(PLAIN, sinks=True),
    replace(PLAIN, softcap=0.7),
    replace(PLAIN, softcap=2.0, sinks=True, head_dim_v=3, apart=True),
    replace(PLAIN, sinks=True, window=Window(6)),
    replace(PLAIN, softcap=0.7, window=Window(6, chunked=True), heads=6),
    # Many query heads a key head, which AMX multiplies.
    replace(PLAIN, heads=20, kv_heads=2, head_dim_k=32, block_size=16),
    replace(PLAIN, heads=20, kv_heads=1, head_dim_k=12, head_dim_v=9, softcap=0.7, sinks=True),
    replace(PLAIN, heads=9, kv_heads=1, head_dim_k=64, head_dim_v=70, block_size=64, layout="NHD"),
    replace(PLAIN, heads=9, kv_heads=1, head_dim_k=32, block_size=16, window=Window(9)),
)
SCALE = 0.3
Backend = tuple[str, AttentionBackend]


def attend(sizes: Sizes, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    """The definition: queries are the last of the sequence's tokens. All `[token, head, dim]`."""
    out = q.new_empty(*q.shape[:2], v.shape[-1])
    context = len(k) - len(q)
    for i in range(len(q)):
        seen = slice(sizes.first_visible(context + i), context + i + 1)
        for head in range(q.shape[1]):
            kv_head = head // (q.shape[1] // k.shape[1])
            scores = (k[seen, kv_head] @ q[i, head]) * SCALE
            if sizes.softcap is not None:
                scores = sizes.softcap * torch.tanh(scores / sizes.softcap)
            if sizes.sinks:
                scores = torch.cat([scores, sinks[head, None]])
            weights = torch.softmax(scores, dim=0)[: seen.stop - seen.start]
            out[i, head] = weights @ v[seen, kv_head]
    return out


def _definition(rows: Sequence[Row], sizes: Sizes, q: Tensor, sinks: Tensor, *kv: Tensor) -> Tensor:
    """`kv` is one k and one v for each row."""
    parts = q.split([row.queries for row in rows])
    pairs = zip(parts, kv[::2], kv[1::2], strict=True)
    return torch.cat([attend(sizes, part, k, v, sinks) for part, k, v in pairs])


def _pool(sizes: Sizes, num_blocks: int, content: int, dtype: torch.dtype, device: str) -> Tensor:
    """Poison: a layer's rows of a pool, seen as `[blocks, kv_heads, block_size, content]`."""
    length = sizes.kv_heads * sizes.block_size * content
    pool = torch.full((num_blocks, length + 24), torch.nan, dtype=dtype, device=device)
    rows = pool[:, 8 : 8 + length]
    if sizes.layout == "HND":
        return rows.unflatten(1, (sizes.kv_heads, sizes.block_size, content))
    return rows.unflatten(1, (sizes.block_size, sizes.kv_heads, content)).transpose(1, 2)


def _caches(
    sizes: Sizes, num_blocks: int, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor]:
    dims = [sizes.head_dim_k, sizes.head_dim_v]
    if sizes.apart:
        k, v = (_pool(sizes, num_blocks, dim, dtype, device) for dim in dims)
    else:
        k, v = _pool(sizes, num_blocks, sum(dims), dtype, device).split(dims, dim=-1)
    return k, v


def _check(
    lengths: Ragged, dtype: torch.dtype, attends: Backend, sizes: Sizes = PLAIN, seed: int = 0
) -> None:
    """Every slot that holds no token of a sequence holds NaN."""
    device, backend = attends
    lengths = in_company(lengths, dtype)
    draw = torch.Generator().manual_seed(seed)
    rows, num_blocks = draw_tables(lengths, sizes.block_size, 3, draw, sizes.window)
    q = torch.randn(lengths.num_tokens, sizes.heads, sizes.head_dim_k, generator=draw).to(dtype)
    sinks = torch.randn(sizes.heads, generator=draw).to(dtype)
    k_cache, v_cache = _caches(sizes, num_blocks, dtype, device)
    kv: list[Tensor] = []
    for row in rows:
        for cache, dim in ((k_cache, sizes.head_dim_k), (v_cache, sizes.head_dim_v)):
            shape = (row.seq_len, sizes.kv_heads, dim)
            kv.append((2 * torch.randn(shape, generator=draw)).to(dtype))
            tokens = kv[-1].to(device)
            for t in range(sizes.first_visible(row.context), row.seq_len):
                cache[row.block(t // sizes.block_size), :, t % sizes.block_size] = tokens[t]

    batch = make_batch(
        rows, num_decodes=lengths.num_decodes, block_size=sizes.block_size, device=device
    )
    out = paged_attention(
        q.to(device),
        k_cache,
        v_cache,
        batch.token_pages(TOKENS),
        batch,
        SCALE,
        window=None if sizes.window is None else sizes.window.size,
        chunked=sizes.window is not None and sizes.window.chunked,
        sinks=sinks.to(device) if sizes.sinks else None,
        softcap=sizes.softcap,
        backend=backend,
    )
    assert out.dtype == dtype
    assert_right(out, lambda *parts: _definition(rows, sizes, *parts), q, sinks, *kv)


@bounded(30)
@given(lengths=ragged(longest=30, most_rows=3), sizes=st.sampled_from(SIZES), seed=st.integers(0))
def test_equals_dense_attention(
    attends: Backend, dtype: torch.dtype, lengths: Ragged, sizes: Sizes, seed: int
) -> None:
    _check(lengths, dtype, attends, sizes, seed % 2**16)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_geometry(attends: Backend, dtype: torch.dtype, sizes: Sizes) -> None:
    lengths = Ragged(((3, 1), (17, 1), (0, 9), (5, 6), (0, 1)), 2)
    _check(lengths, dtype, attends, sizes)


@pytest.mark.parametrize("window", [None, Window(40)])
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_many_decodes_of_many_key_heads(
    attends: Backend, dtype: torch.dtype, layout: str, window: Window | None
) -> None:
    """So many that a CPU's threads take some key heads at once, of which the last are fewer."""
    sizes = replace(PLAIN, heads=14, kv_heads=7, block_size=16, layout=layout, window=window)
    _check(Ragged(((700, 1), *((13 * i + 1, 1) for i in range(9))), 10), dtype, attends, sizes)


@pytest.mark.parametrize(("heads", "kv_heads"), [(12, 1), (40, 2), (14, 7)])
def test_threads_do_not_change_a_decode(
    dtype: torch.dtype, heads: int, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share out pieces, key heads and, where those are few, query heads."""
    sizes = replace(PLAIN, heads=heads, kv_heads=kv_heads, block_size=16)
    draw = torch.Generator().manual_seed(0)
    for contexts in ((40,), (700, 3), (5000, 1, 90)):
        lengths = Ragged(tuple((context, 1) for context in contexts), len(contexts))
        rows, num_blocks = draw_tables(lengths, 16, 0, draw)
        batch = make_batch(rows, num_decodes=len(rows), block_size=16)
        k, v = (cache.normal_(generator=draw) for cache in _caches(sizes, num_blocks, dtype, "cpu"))
        q = torch.randn(len(rows), heads, sizes.head_dim_k, generator=draw).to(dtype)
        results: list[Tensor] = []
        for threads in (1, 2, 3, 16):
            monkeypatch.setattr(numba, "get_num_threads", lambda n=threads: n)
            pages = batch.token_pages(TOKENS)
            results.append(paged_attention(q, k, v, pages, batch, SCALE, backend="numba"))
        assert all(torch.equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_extreme_batches(attends: Backend, dtype: torch.dtype, lengths: Ragged) -> None:
    _check(lengths, dtype, attends)


SMALL = replace(PLAIN, heads=1, kv_heads=1, head_dim_k=4, head_dim_v=4)


@pytest.mark.parametrize("window", [None, Window(70), Window(600), Window(70, chunked=True)])
@pytest.mark.parametrize("sinks", [False, True])
def test_a_chunk_of_more_queries_than_are_masked_at_once(
    attends: Backend, dtype: torch.dtype, window: Window | None, sinks: bool
) -> None:
    sizes = replace(SMALL, window=window, sinks=sinks)
    _check(Ragged(((93, QUERY_BLOCK + 5), (0, 600)), 0), dtype, attends, sizes)


def test_few_scores_at_once_where_no_kernel_computes_them(
    attends: Backend, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax_attention, "_MOST_SCORES", 100)
    sizes = replace(PLAIN, sinks=True, softcap=1.0)
    _check(Ragged(((3, 1), (20, 11), (0, 30)), 1), dtype, attends, sizes)


@pytest.mark.parametrize("window", [Window(64), Window(64, chunked=True)])
def test_a_long_chunk_is_never_masked_as_a_whole(window: Window) -> None:
    sizes, queries = replace(SMALL, window=window), 5000
    rows, num_blocks = draw_tables(
        Ragged(((100, queries),), 0), 16, 0, torch.Generator(), sizes.window
    )
    batch = make_batch(rows, num_decodes=0, block_size=16)
    pool = torch.zeros(num_blocks, 1, 16, 8)
    q, (k, v) = torch.zeros(queries, 1, 4), pool.split(4, dim=-1)
    with nothing_larger_than(queries * 50, pool):
        pages = batch.token_pages(TOKENS)
        paged_attention(q, k, v, pages, batch, SCALE, window.size, window.chunked)


def test_padding_tokens_get_zeros(attends: Backend) -> None:
    device, backend = attends
    pool = torch.ones(3, 1, 4, 8, device=device)
    batch = make_batch([Row(0, 3, (1,))], num_decodes=0, block_size=4, padding=4, device=device)
    k, v = pool.split(4, dim=-1)
    q = torch.ones(7, 1, 4, device=device)
    out = paged_attention(q, k, v, batch.token_pages(TOKENS), batch, SCALE, backend=backend)
    assert out[:3].eq(1).all() and out[3:].eq(0).all()


def test_keys_and_values_of_one_view_are_found_and_others_are_not(device: str) -> None:
    cache = _pool(PLAIN, 5, 12, torch.float32, device)
    k, v = cache.split([8, 4], dim=-1)
    both = side_by_side(k, v)
    assert both is not None
    assert both.data_ptr() == cache.data_ptr()
    assert (both.shape, both.stride()) == (cache.shape, cache.stride())
    for other in (v.clone(), cache[..., 7:11], _pool(PLAIN, 5, 12, torch.float32, device)[..., 8:]):
        assert side_by_side(k, other) is None
    assert side_by_side(v, k) is None
    assert side_by_side(k[..., :7], v) is None


def test_the_zeros_behind_a_page_table_are_not_pages(attends: Backend) -> None:
    """A short row's table is padded with block 0, which may be anyone's."""
    device, backend = attends
    cache = torch.full((3, 1, 2, 4), torch.nan, device=device)
    cache[1:] = 1.0
    k, v = cache.split(2, dim=-1)
    q = torch.ones(2, 1, 2, device=device)
    rows = [Row(1, 1, (1,)), Row(3, 1, (2, 1))]
    batch = make_batch(rows, num_decodes=2, block_size=2, device=device)
    out = paged_attention(q, k, v, batch.token_pages(TOKENS), batch, 1.0, backend=backend)
    assert out.eq(1).all()


@pytest.mark.parametrize(("length", "other"), [(37, 21), (33, 47), (64, 2), (2, 64)])
def test_nan_of_another_sequence_changes_nothing(attends: Backend, length: int, other: int) -> None:
    """It may be read ahead, and even multiplied, but never added."""
    device, backend = attends
    draw = torch.Generator().manual_seed(0)
    cache = torch.randn(9, 2, 16, 128, generator=draw).bfloat16().to(device)
    q = torch.randn(2, 4, 64, generator=draw).bfloat16().to(device)
    pages = (1, 2, 3, 4)[: -(-length // 16)], (5, 6, 7, 8)[: -(-other // 16)]
    rows = [Row(length - 1, 1, pages[0]), Row(other - 1, 1, pages[1])]
    batch = make_batch(rows, num_decodes=2, block_size=16, device=device)

    def attended() -> Tensor:
        k, v = cache.split(64, dim=-1)
        return paged_attention(q, k, v, batch.token_pages(TOKENS), batch, 0.1, backend=backend)

    before = attended()
    cache[5:] = torch.nan
    after = attended()
    assert torch.equal(after[0], before[0]) and after[1].isnan().all()
