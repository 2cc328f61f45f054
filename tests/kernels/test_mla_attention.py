"""Attention over cached latents against attention over the keys and values they stand for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.batch import Prefill
from hybridrt.cache.spec import Window
from hybridrt.kernels.backend import AttentionBackend
from hybridrt.kernels.mla_attention import mla_attention
from hybridrt.kernels.reference import mla_attention as reference
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
    """Dimensions at which both forms come up: the longer a context, the fewer expand."""

    heads: int = 3
    nope_dim: int = 12
    rope_dim: int = 8
    rank: int = 24
    v_dim: int = 16
    block_size: int = 4
    window: Window | None = None

    def first(self, position: int) -> int:
        """The first token that the one at a position sees."""
        return 0 if self.window is None else self.window.first_visible(position)


PLAIN = Sizes()
SIZES = (
    PLAIN,
    replace(PLAIN, heads=1),
    replace(PLAIN, heads=21),  # more than a thread takes at once
    replace(PLAIN, nope_dim=7, rope_dim=6, rank=13, v_dim=5),
    replace(PLAIN, v_dim=24),  # larger than a key
    replace(PLAIN, heads=5, nope_dim=70, rank=100, v_dim=75),  # weights of several tiles of rows
    replace(PLAIN, rank=64),
    replace(PLAIN, rank=4),
    replace(PLAIN, block_size=1),
    replace(PLAIN, block_size=64),
    replace(PLAIN, rope_dim=32, rank=64, block_size=16),  # read in pages, where others are copied
    replace(PLAIN, rope_dim=32, rank=64, block_size=16, window=Window(30)),
    replace(PLAIN, window=Window(1)),
    replace(PLAIN, window=Window(6)),
    replace(PLAIN, window=Window(16), block_size=1, rank=4),
    replace(PLAIN, window=Window(6, chunked=True)),
)
SCALE = 0.25
Backend = tuple[str, AttentionBackend]


def _definition(sizes: Sizes, rows: Sequence[Row], *inputs: Tensor) -> Tensor:
    """Expands every latent: a head's key is `[w_uk c_kv, k_pe]`, its value `w_uv c_kv`."""
    q_nope, q_pe, w_uk, w_uv, *latents = inputs
    out = q_nope.new_empty(*q_nope.shape[:2], w_uv.shape[1])
    token = 0
    for row, c_kv, k_pe in zip(rows, latents[::2], latents[1::2], strict=True):
        for i in range(row.queries):
            position = row.context + i
            seen = slice(sizes.first(position), position + 1)
            for head in range(q_nope.shape[1]):
                k = torch.cat([c_kv[seen] @ w_uk[head].t(), k_pe[seen]], dim=-1)
                v = c_kv[seen] @ w_uv[head].t()
                q = torch.cat([q_nope[token, head], q_pe[token, head]])
                out[token, head] = torch.softmax((k @ q) * SCALE, dim=0) @ v
            token += 1
    return out


def _poison(num_blocks: int, tokens: int, dim: int, dtype: torch.dtype, device: str) -> Tensor:
    pool = torch.full((num_blocks, tokens * dim + 24), torch.nan, dtype=dtype, device=device)
    return pool[:, 8 : 8 + tokens * dim].unflatten(1, (tokens, dim))


def _check(
    lengths: Ragged,
    dtype: torch.dtype,
    attends: Backend,
    sizes: Sizes = PLAIN,
    seed: int = 0,
    step: int = 1,
) -> None:
    """Every slot that holds no token of a sequence holds NaN.

    A number of a query stands `step` numbers behind the one before.
    """
    device, backend = attends
    lengths = in_company(lengths, dtype)
    draw = torch.Generator().manual_seed(seed)
    rows, num_blocks = draw_tables(lengths, sizes.block_size, 3, draw, sizes.window)

    def normal(*shape: int, size: float = 1.0) -> Tensor:
        return (size * torch.randn(shape, generator=draw)).to(dtype)

    tokens, heads = lengths.num_tokens, sizes.heads
    q_nope, q_pe = normal(tokens, heads, sizes.nope_dim), normal(tokens, heads, sizes.rope_dim)
    w_uk = normal(heads, sizes.nope_dim, sizes.rank, size=sizes.rank**-0.5)
    w_uv = normal(heads, sizes.v_dim, sizes.rank, size=sizes.rank**-0.5)
    c_kv = _poison(num_blocks, sizes.block_size, sizes.rank, dtype, device)
    k_pe = _poison(num_blocks, sizes.block_size, sizes.rope_dim, dtype, device)
    latents: list[Tensor] = []
    for row in rows:
        for cache in (c_kv, k_pe):
            latents.append(normal(row.seq_len, cache.shape[-1]))
            for t, value in enumerate(latents[-1].to(device)):
                if t >= sizes.first(row.context):
                    cache[row.block(t // sizes.block_size), t % sizes.block_size] = value

    batch = make_batch(
        rows, num_decodes=lengths.num_decodes, block_size=sizes.block_size, device=device
    )
    out = mla_attention(
        *(q.repeat_interleave(step, -1).to(device)[..., ::step] for q in (q_nope, q_pe)),
        c_kv,
        k_pe,
        w_uk.to(device),
        w_uv.to(device),
        batch.token_pages(TOKENS),
        batch,
        SCALE,
        window=None if sizes.window is None else sizes.window.size,
        chunked=sizes.window is not None and sizes.window.chunked,
        backend=backend,
    )
    assert out.dtype == dtype
    inputs = (q_nope, q_pe, w_uk, w_uv, *latents)
    assert_right(out, lambda *parts: _definition(sizes, rows, *parts), *inputs)


@bounded(30)
@given(lengths=ragged(longest=25, most_rows=3), sizes=st.sampled_from(SIZES), seed=st.integers(0))
def test_equals_dense_attention_on_expanded_keys(
    attends: Backend, dtype: torch.dtype, lengths: Ragged, sizes: Sizes, seed: int
) -> None:
    _check(lengths, dtype, attends, sizes, seed % 2**16)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_geometry(attends: Backend, dtype: torch.dtype, sizes: Sizes) -> None:
    lengths = Ragged(((3, 1), (17, 1), (0, 9), (9, 3), (2, 14), (0, 1)), 2)
    _check(lengths, dtype, attends, sizes)


def test_queries_may_have_gaps(attends: Backend, dtype: torch.dtype) -> None:
    lengths = Ragged(((3, 1), (17, 1), (9, 3), (0, 20)), 2)
    for sizes in (PLAIN, replace(PLAIN, nope_dim=7, rope_dim=6, rank=13, v_dim=5)):
        _check(lengths, dtype, attends, sizes, step=3)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_extreme_batches(attends: Backend, dtype: torch.dtype, lengths: Ragged) -> None:
    _check(lengths, dtype, attends, replace(PLAIN, heads=1))


def test_of_long_contexts(attends: Backend, dtype: torch.dtype) -> None:
    """Which threads share in pieces; two rows have odd ends."""
    lengths = Ragged(((256, 1), (600, 1), (79, 1)), 3)
    for sizes in (PLAIN, replace(PLAIN, rope_dim=32, rank=64, block_size=16)):
        _check(lengths, dtype, attends, sizes)


def test_a_sequence_may_hold_anything_beside_others(attends: Backend, dtype: torch.dtype) -> None:
    """A key's two parts are no whole steps of AMX: what fills them up comes from nobody."""
    device, backend = attends
    draw = torch.Generator().manual_seed(0)
    for rank, rope_dim in ((24, 8), (12, 40), (48, 8)):
        rows, num_blocks = draw_tables(Ragged(((20, 1), (20, 1)), 2), 4, 0, draw, None)
        sizes = (2, 3, 12), (2, 3, rope_dim), (num_blocks, 4, rank), (num_blocks, 4, rope_dim)
        q_nope, q_pe, c_kv, k_pe = (
            torch.randn(size, generator=draw).to(device, dtype) for size in sizes
        )
        w_uk = torch.randn(3, 12, rank, generator=draw).to(device, dtype)
        w_uv = torch.randn(3, 16, rank, generator=draw).to(device, dtype)
        batch = make_batch(rows, num_decodes=2, block_size=4, device=device)

        args = q_nope, q_pe, c_kv, k_pe, w_uk, w_uv, batch.token_pages(TOKENS), batch, SCALE
        clean = mla_attention(*args, backend=backend)
        for block in range(6):
            c_kv[rows[0].block(block)], k_pe[rows[0].block(block)] = torch.nan, torch.nan
        spoilt = mla_attention(*args, backend=backend)
        assert spoilt[0].isnan().all() and torch.equal(spoilt[1], clean[1])


def _expands(sizes: Sizes, context: int, queries: int) -> bool:
    w_uk = torch.empty(sizes.heads, sizes.nope_dim, sizes.rank)
    w_uv = torch.empty(sizes.heads, sizes.v_dim, sizes.rank)
    row = Prefill(0, 0, queries, context)
    return reference.expanding_is_cheaper(row, w_uk, w_uv, sizes.rope_dim)


def test_few_queries_on_many_latents_are_absorbed_and_many_on_few_expanded() -> None:
    deepseek = Sizes(heads=16, nope_dim=128, rope_dim=64, rank=512, v_dim=128)
    assert _expands(deepseek, 0, 512)
    assert _expands(deepseek, 512, 512)
    assert not _expands(deepseek, 4096, 1)
    assert not _expands(deepseek, 4096, 16)
    for sizes in (deepseek, PLAIN):
        choices = [_expands(sizes, 64, queries) for queries in range(1, 400)]
        assert choices == sorted(choices), "more queries never make expanding worse"
        assert True in choices and False in choices


@pytest.mark.parametrize("form", [True, False], ids=["expanded", "absorbed"])
@pytest.mark.parametrize("lengths", [((0, 1),), ((0, 20),), ((30, 2),), ((4, 30), (19, 1))])
@pytest.mark.parametrize("window", [None, Window(5)])
def test_either_form_is_right_everywhere(
    monkeypatch: pytest.MonkeyPatch,
    attends: Backend,
    dtype: torch.dtype,
    form: bool,
    lengths: tuple[tuple[int, int], ...],
    window: Window | None,
) -> None:
    monkeypatch.setattr(reference, "expanding_is_cheaper", lambda *_: form)
    _check(Ragged(lengths, 0), dtype, attends, replace(PLAIN, window=window))
