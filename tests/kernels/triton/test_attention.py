"""Attention in Triton, over pages and over latents, against the definitions of its contracts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.batch import TokenPages
from hybridrt.cache.spec import Window
from hybridrt.kernels.quantise import quantise_e4m3, quantise_e4m3_groups, quantise_int8
from hybridrt.kernels.reference.mla_attention import mla_attention as reference_of_latents
from hybridrt.kernels.reference.paged_attention import paged_attention as reference
from tests.harness.batches import TOKENS, Ragged, draw_tables, make_batch, ragged
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close
from tests.kernels import test_mla_attention as latents
from tests.kernels import test_paged_attention as pages
from tests.kernels.triton.conftest import ON_GPU, ONE_DTYPE_HERE

Place = tuple[str, torch.dtype]
MIXED = Ragged(((3, 1), (17, 1), (0, 9), (5, 6), (0, 1)), 2)
LENGTHS = (
    Ragged(((0, 1),), 0),
    Ragged(((1, 1),), 1),
    Ragged(((0, 130),), 0),
    Ragged(((129, 3), (0, 70)), 0),
    Ragged(tuple((1 + i % 5, 1) for i in range(9)), 9),
)
SPLITS = pytest.mark.parametrize("splits", [1, 3, 8])
"""Of decode rows; of some there are more than a short context has tiles."""


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Cuts contexts into so many splits."""

    def into(splits: int) -> None:
        from hybridrt.kernels.triton import mla_attention, paged_attention

        for module in (paged_attention, mla_attention):
            monkeypatch.setattr(module, "num_splits", lambda *_: splits)

    return into


@pytest.fixture(autouse=True)
def _put_in(put_in: Any, place: Place) -> None:
    from hybridrt.kernels.triton.mla_attention import mla_attention
    from hybridrt.kernels.triton.paged_attention import paged_attention

    put_in(pages, "paged_attention", paged_attention)
    put_in(latents, "mla_attention", mla_attention)


@ONE_DTYPE_HERE
@pytest.mark.parametrize("sizes", pages.SIZES, ids=str)
def test_every_geometry_of_pages(
    place: Place, cut: Callable[[int], None], sizes: pages.Sizes
) -> None:
    cut(2 if sizes.heads == 4 else 1)
    pages._check(MIXED, place[1], (place[0], "triton"), sizes)


@bounded(6)
@given(
    lengths=ragged(longest=30, most_rows=2),
    sizes=st.sampled_from(pages.SIZES),
    splits=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_ragged_batches(
    place: Place,
    cut: Callable[[int], None],
    lengths: Ragged,
    sizes: pages.Sizes,
    splits: int,
    seed: int,
) -> None:
    cut(splits)
    pages._check(lengths, place[1], (place[0], "triton"), sizes, seed)


@ONE_DTYPE_HERE
@pytest.mark.parametrize(
    ("channels", "first"), [(24, 24), (40, 40), (64, 64), (72, 64), (80, 64), (96, 64), (100, 100)]
)
def test_prefills_take_keys_in_two_parts_where_tiles_are_less_empty(
    place: Place, channels: int, first: int
) -> None:
    from hybridrt.kernels.triton.paged_attention import _first_part

    assert _first_part(channels) == first
    sizes = replace(pages.PLAIN, head_dim_k=channels, sinks=True)
    for layout in ("HND", "NHD"):
        pages._check(MIXED, place[1], (place[0], "triton"), replace(sizes, layout=layout))


@pytest.mark.parametrize("scale", [-0.2, 0.0])
def test_a_scale_need_not_be_above_zero(
    place: Place, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SCALE", scale)
    pages._check(MIXED, place[1], (place[0], "triton"))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_extreme_batches(place: Place, lengths: Ragged) -> None:
    pages._check(lengths, place[1], (place[0], "triton"))


@ONE_DTYPE_HERE
@SPLITS
@pytest.mark.parametrize(
    "sizes",
    [
        pages.PLAIN,
        replace(pages.PLAIN, window=Window(40), sinks=True),
        replace(pages.PLAIN, heads=20, kv_heads=1, head_dim_v=5),
    ],
    ids=str,
)
def test_any_number_of_splits(
    place: Place, cut: Callable[[int], None], splits: int, sizes: pages.Sizes
) -> None:
    cut(splits)
    pages._check(Ragged(((200, 1), (1, 1), (64, 1)), 3), place[1], (place[0], "triton"), sizes)


def test_padding_tokens_get_zeros(place: Place) -> None:
    pages.test_padding_tokens_get_zeros((place[0], "triton"))


def test_the_zeros_behind_a_page_table_are_not_pages(place: Place) -> None:
    pages.test_the_zeros_behind_a_page_table_are_not_pages((place[0], "triton"))


def test_a_decode_row_of_no_tokens_is_zeros(place: Place, cut: Callable[[int], None]) -> None:
    """As a captured graph has rows that are padding."""
    from hybridrt.kernels.triton.paged_attention import paged_attention

    for splits in (1, 2):
        cut(splits)
        rows, blocks = draw_tables(Ragged(((7, 1), (3, 1)), 2), 4, 1, torch.Generator())
        batch = make_batch(rows, num_decodes=2, block_size=4, device=place[0])
        batch.seq_lens[1] = 0
        k = torch.full((blocks, 2, 4, 8), torch.nan, device=place[0])
        for block in rows[0].blocks:
            k[block] = 1
        q = torch.ones(2, 4, 8, device=place[0])
        out = paged_attention(q, k, k, batch.token_pages(TOKENS), batch, 0.5)
        assert out[0].eq(1).all() and out[1].eq(0).all()


def _drawn(place: Place, *shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=draw)


@pytest.mark.parametrize("per_token", [True, False])
@SPLITS
def test_a_quantised_cache_is_read_as_the_reference_reads_it(
    place: Place, cut: Callable[[int], None], per_token: bool, splits: int
) -> None:
    from hybridrt.kernels.triton.paged_attention import paged_attention

    cut(splits)
    rows, blocks = draw_tables(MIXED, 4, 2, torch.Generator().manual_seed(0))
    batch = make_batch(rows, num_decodes=2, block_size=4)
    k, v = _drawn(place, blocks, 2, 4, 24), _drawn(place, blocks, 2, 4, 20)
    if per_token:
        (k, k_scale), (v, v_scale) = quantise_int8(k), quantise_int8(v)
    else:
        k_scale, v_scale = torch.tensor([0.01, 0.02]), torch.tensor([0.03, 0.01])
        k = quantise_e4m3(k.transpose(1, 2).flatten(0, 1), k_scale).unflatten(0, (-1, 4))
        v = quantise_e4m3(v.transpose(1, 2).flatten(0, 1), v_scale).unflatten(0, (-1, 4))
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    q = _drawn(place, MIXED.num_tokens, 4, 24)
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    expected = reference(q, k, v, batch.token_pages(TOKENS), batch, 0.3, **scales)
    batch = make_batch(rows, num_decodes=2, block_size=4, device=place[0])
    q, k, v, k_scale, v_scale = (part.to(place[0]) for part in (q, k, v, k_scale, v_scale))
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    out = paged_attention(q.to(place[1]), k, v, batch.token_pages(TOKENS), batch, 0.3, **scales)
    _assert_near(out, expected)


def _assert_near(out: Tensor, expected: Tensor) -> None:
    """Right to rounding in float32; else to some roundings of inputs, weights and the result."""
    if out.dtype == torch.float32:
        assert_close(out, expected)
    else:
        bound = 8 * torch.finfo(out.dtype).eps * expected.abs().max().item()
        torch.testing.assert_close(out.cpu().float(), expected, rtol=0, atol=bound)


@pytest.fixture(params=[True, False], ids=["expanded", "absorbed"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether prefill rows have their keys and values made."""
    from hybridrt.kernels.triton import mla_attention

    monkeypatch.setattr(mla_attention, "expanding_is_cheaper", lambda *_: request.param)
    return request.param


@ONE_DTYPE_HERE
@pytest.mark.parametrize("sizes", latents.SIZES, ids=str)
def test_every_geometry_of_latents(
    place: Place, cut: Callable[[int], None], form: bool, sizes: latents.Sizes
) -> None:
    cut(3 if form else 1)
    lengths = Ragged(((3, 1), (70, 1), (0, 9), (9, 3), (2, 14), (0, 1)), 2)
    latents._check(lengths, place[1], (place[0], "triton"), sizes)


@bounded(4)
@given(
    lengths=ragged(longest=25, most_rows=2),
    sizes=st.sampled_from(latents.SIZES),
    splits=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_ragged_batches_of_latents(
    place: Place,
    cut: Callable[[int], None],
    form: bool,
    lengths: Ragged,
    sizes: latents.Sizes,
    splits: int,
    seed: int,
) -> None:
    cut(splits)
    latents._check(lengths, place[1], (place[0], "triton"), sizes, seed)


@pytest.mark.parametrize("dtype_of_rotary", [torch.float32, torch.float16])
def test_weights_that_are_parts_of_one(place: Place, form: bool, dtype_of_rotary: Any) -> None:
    """As a layer's are. Queries are views too, and rotary keys have a dtype of their own."""
    from hybridrt.kernels.triton.mla_attention import mla_attention

    rows, blocks = draw_tables(MIXED, 4, 2, torch.Generator().manual_seed(0))
    q, latents = _drawn(place, MIXED.num_tokens, 3, 20), _drawn(place, blocks, 4, 32)
    weight = _drawn(place, 3, 12 + 10, 24) / 24**0.5

    def run(kernel: Any, device: str, dtype: torch.dtype) -> Tensor:
        batch = make_batch(rows, num_decodes=2, block_size=4, device=device)
        queries, weights = q.to(device, dtype).split([12, 8], -1), weight.to(device, dtype)
        c_kv, k_pe = latents.to(device, dtype).split([24, 8], -1)
        cached = (c_kv, k_pe.to(dtype_of_rotary), *weights.split([12, 10], 1))
        return kernel(*queries, *cached, batch.token_pages(TOKENS), batch, 0.25)

    expected = run(reference_of_latents, "cpu", torch.float32)
    _assert_near(run(mla_attention, *place), expected)


def test_more_latents_than_a_tile_and_more_heads(place: Place, form: bool) -> None:
    sizes = replace(latents.PLAIN, heads=20)
    latents._check(Ragged(((40, 1), (33, 5)), 1), place[1], (place[0], "triton"), sizes)


@SPLITS
def test_more_decode_rows_than_are_joined_as_they_are_expanded(
    place: Place, cut: Callable[[int], None], splits: int
) -> None:
    cut(splits)
    latents._check(Ragged(((200, 1), (1, 1), (64, 1)), 3), place[1], (place[0], "triton"))


@SPLITS
def test_quantised_latents_are_read_as_the_reference_reads_them(
    place: Place, cut: Callable[[int], None], form: bool, splits: int
) -> None:
    from hybridrt.kernels.triton.mla_attention import mla_attention

    cut(splits)
    rank, rope, heads = 150, 8, 3  # one group of 128 and a smaller one
    rows, blocks = draw_tables(MIXED, 4, 2, torch.Generator().manual_seed(0))
    c_kv, scale = quantise_e4m3_groups(_drawn(place, blocks, 4, rank))
    given = [_drawn(place, MIXED.num_tokens, heads, dim) for dim in (12, rope)]
    given += [_drawn(place, blocks, 4, rope), _drawn(place, heads, 12, rank) / rank**0.5]
    given += [_drawn(place, heads, 10, rank) / rank**0.5]

    def run(kernel: Any, device: str, dtype: torch.dtype) -> Tensor:
        batch = make_batch(rows, num_decodes=2, block_size=4, device=device)
        where: TokenPages = batch.token_pages(TOKENS)
        q_nope, q_pe, k_pe, w_uk, w_uv = (part.to(device, dtype) for part in given)
        cached = (c_kv.to(device), k_pe, w_uk, w_uv, where, batch, 0.25, scale.to(device))
        return kernel(q_nope, q_pe, *cached)

    expected = run(reference_of_latents, "cpu", torch.float32)
    _assert_near(run(mla_attention, *place), expected)


@ON_GPU
def test_a_captured_decode_step_takes_any_contexts(place: Place) -> None:
    from hybridrt.kernels.triton.mla_attention import mla_attention
    from hybridrt.kernels.triton.paged_attention import paged_attention

    lengths = Ragged(((700, 1), (650, 1), (600, 1)), 3)
    rows, blocks = draw_tables(lengths, 4, 2, torch.Generator())
    batch = make_batch(rows, num_decodes=3, block_size=4, device=place[0])
    drawn = [
        _drawn(place, *shape).to(place[0])
        for shape in ((3, 4, 32), (blocks, 2, 4, 32), (3, 4, 8), (4, 32, 32))
    ]
    q, kv, q_pe, weights = drawn
    where, latents = batch.token_pages(TOKENS), kv[:, 0]

    def run() -> list[Tensor]:
        cached = (latents, latents[..., :8], weights, weights, where, batch, 0.2)
        return [paged_attention(q, kv, kv, where, batch, 0.2), mla_attention(q, q_pe, *cached)]

    run()  # compiles, which no capture may
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = run()
    for seq_lens in ([701, 651, 601], [1, 300, 128], [0, 2, 701]):
        batch.seq_lens.copy_(torch.tensor(seq_lens))
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(outs, run(), strict=True))
