"""Attention over pages against attention over a sequence, one query and head at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.paged_attention import paged_attention
from hybridrt.kernels.reference.paged_attention import QUERY_BLOCK
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
    """Heads and dimensions. `layout` is of a kernel block."""

    heads: int = 4
    kv_heads: int = 2
    head_dim_k: int = 16
    head_dim_v: int = 16
    block_size: int = 4
    layout: str = "HND"


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
)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The definition: queries are the last of the sequence's tokens. All `[token, head, dim]`."""
    out = q.new_empty(*q.shape[:2], v.shape[-1])
    context = len(k) - len(q)
    for i in range(len(q)):
        seen = context + i + 1
        for head in range(q.shape[1]):
            kv_head = head // (q.shape[1] // k.shape[1])
            scores = (k[:seen, kv_head] @ q[i, head]) * scale
            out[i, head] = torch.softmax(scores, dim=0) @ v[:seen, kv_head]
    return out


def _definition(rows: Sequence[Row], scale: float, q: Tensor, *kv: Tensor) -> Tensor:
    """`kv` is one k and one v for each row."""
    parts = q.split([row.queries for row in rows])
    pairs = zip(kv[::2], kv[1::2], strict=True)
    return torch.cat([attend(part, k, v, scale) for part, (k, v) in zip(parts, pairs, strict=True)])


def _pool(sizes: Sizes, num_blocks: int, dtype: torch.dtype, device: str) -> Tensor:
    """Poison: a layer's rows of a pool, seen as `[blocks, kv_heads, block_size, content]`."""
    content = sizes.head_dim_k + sizes.head_dim_v
    length = sizes.kv_heads * sizes.block_size * content
    pool = torch.full((num_blocks, length + 24), torch.nan, dtype=dtype, device=device)
    rows = pool[:, 8 : 8 + length]
    if sizes.layout == "HND":
        return rows.unflatten(1, (sizes.kv_heads, sizes.block_size, content))
    return rows.unflatten(1, (sizes.block_size, sizes.kv_heads, content)).transpose(1, 2)


def _check(
    lengths: Ragged, dtype: torch.dtype, device: str, sizes: Sizes = PLAIN, seed: int = 0
) -> None:
    """Every slot that holds no token of a sequence holds NaN."""
    lengths = in_company(lengths, dtype)
    draw = torch.Generator().manual_seed(seed)
    rows, num_blocks = draw_tables(lengths, sizes.block_size, spare=3, draw=draw)
    q = torch.randn(lengths.num_tokens, sizes.heads, sizes.head_dim_k, generator=draw).to(dtype)
    cache = _pool(sizes, num_blocks, dtype, device)
    kv: list[Tensor] = []
    for row in rows:
        for dim in (sizes.head_dim_k, sizes.head_dim_v):
            shape = (row.seq_len, sizes.kv_heads, dim)
            kv.append((2 * torch.randn(shape, generator=draw)).to(dtype))
        both = torch.cat(kv[-2:], dim=-1).to(device)
        for t in range(row.seq_len):
            block = row.blocks[t // sizes.block_size]
            cache[block, :, t % sizes.block_size] = both[t]

    batch = make_batch(
        rows, num_decodes=lengths.num_decodes, block_size=sizes.block_size, device=device
    )
    scale = 0.3
    out = paged_attention(q.to(device), cache, batch.token_pages(TOKENS), batch, scale)
    assert out.dtype == dtype
    assert_right(out, lambda *parts: _definition(rows, scale, *parts), q, *kv)


@bounded(30)
@given(lengths=ragged(longest=30, most_rows=3), sizes=st.sampled_from(SIZES), seed=st.integers(0))
def test_equals_dense_attention(
    device: str, dtype: torch.dtype, lengths: Ragged, sizes: Sizes, seed: int
) -> None:
    _check(lengths, dtype, device, sizes, seed % 2**16)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_geometry(device: str, dtype: torch.dtype, sizes: Sizes) -> None:
    lengths = Ragged(((3, 1), (17, 1), (0, 9), (5, 6), (0, 1)), 2)
    _check(lengths, dtype, device, sizes)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_extreme_batches(device: str, dtype: torch.dtype, lengths: Ragged) -> None:
    _check(lengths, dtype, device)


def test_a_chunk_of_more_queries_than_are_masked_at_once(device: str, dtype: torch.dtype) -> None:
    sizes = replace(PLAIN, heads=1, kv_heads=1, head_dim_k=4, head_dim_v=4)
    _check(Ragged(((3, QUERY_BLOCK + 5),), 0), dtype, device, sizes)


def test_the_zeros_behind_a_page_table_are_not_pages(device: str) -> None:
    """A short row's table is padded with block 0, which may be anyone's."""
    cache = torch.full((3, 1, 2, 4), torch.nan, device=device)
    cache[1:] = 1.0
    q = torch.ones(2, 1, 2, device=device)
    rows = [Row(1, 1, (1,)), Row(3, 1, (2, 1))]
    batch = make_batch(rows, num_decodes=2, block_size=2, device=device)
    out = paged_attention(q, cache, batch.token_pages(TOKENS), batch, 1.0)
    assert out.eq(1).all()
