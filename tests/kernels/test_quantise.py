"""Eight-bit numbers are no further off than is written down, nor is attention over them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.mla_attention import mla_attention
from hybridrt.kernels.paged_attention import paged_attention
from hybridrt.kernels.quantise import (
    E4M3_LARGEST,
    GROUP,
    dequantise,
    dequantise_groups,
    quantise_e4m3,
    quantise_e4m3_groups,
    quantise_int8,
)
from hybridrt.kernels.write_pages import write_pages
from tests.harness.batches import TOKENS, Ragged, draw_tables, make_batch, ragged
from tests.harness.properties import bounded

ROUNDING = 1 + 2.0**-21  # dividing and multiplying in float32

numbers = st.floats(-(2.0**127), 2.0**127, width=32)
scales = st.floats(2.0**-40, 2.0**40, width=32)


def _e4m3_bound(x: Tensor, scale: Tensor) -> Tensor:
    """Of the error, per element, in float64."""
    x, scale = x.double(), scale.double()
    within = torch.maximum(x.abs() / 16, scale / 1024)
    beyond = x.abs() - E4M3_LARGEST * scale
    return torch.maximum(within, beyond) * ROUNDING


@bounded(300)
@given(values=st.lists(numbers, min_size=6, max_size=6), scale=scales)
def test_e4m3_is_off_by_a_sixteenth_and_saturates(values: list[float], scale: float) -> None:
    x, s = torch.tensor(values).view(2, 1, 3), torch.tensor([scale])
    back = dequantise(quantise_e4m3(x, s), s, torch.float32)
    assert ((back.double() - x).abs() <= _e4m3_bound(x, s)).all()
    assert (back.abs() <= E4M3_LARGEST * s * ROUNDING).all()


def test_e4m3_within_its_range_densely() -> None:
    x = torch.linspace(-450, 450, 200_001).view(-1, 1, 1)
    for scale in (1.0, 0.37, 3.0):
        s = torch.tensor([scale])
        error = (dequantise(quantise_e4m3(x * s, s), s, torch.float32) - x * s).abs()
        assert (error <= _e4m3_bound(x * s, s)).all()
        assert error.max() > 0.9 * 16 * scale  # the bound is tight: half of 32 at 448


def test_each_head_has_its_scale() -> None:
    x = torch.tensor([[[500.0, -1.0], [500.0, -1.0]]])
    stored = quantise_e4m3(x, torch.tensor([1.0, 2.0])).float()
    assert stored.tolist() == [[[448.0, -1.0], [256.0, -0.5]]]


@bounded(300)
@given(values=st.lists(numbers, min_size=5, max_size=5))
def test_int8_is_off_by_half_a_step(values: list[float]) -> None:
    x = torch.tensor([values, values[::-1]])
    stored, scale = quantise_int8(x)
    back = dequantise(stored, scale[:, None], torch.float32)
    assert scale.shape == (2,)
    assert ((back.double() - x).abs() <= scale.double()[:, None] / 2 * ROUNDING).all()
    assert stored.float().abs().max() <= 127


@bounded(100)
@given(
    exponents=st.lists(st.integers(-100, 100), min_size=3, max_size=3),
    dim=st.sampled_from([1, 5, GROUP - 1, GROUP, GROUP + 1, 3 * GROUP]),
)
def test_groups_of_channels_have_scales_of_their_own(exponents: list[int], dim: int) -> None:
    x = torch.randn(2, dim, generator=torch.Generator().manual_seed(dim))
    groups = x.split(GROUP, dim=-1)
    x = torch.cat([2.0**e * part for e, part in zip(exponents, groups, strict=False)], dim=-1)
    stored, scale = quantise_e4m3_groups(x)
    assert stored.shape == x.shape
    assert scale.shape == (2, len(groups))
    each = scale.repeat_interleave(GROUP, dim=-1)[:, :dim]
    back = dequantise_groups(stored, scale, torch.float32)
    assert ((back.double() - x).abs() <= _e4m3_bound(x, each)).all()
    assert (x.abs() <= E4M3_LARGEST * each * ROUNDING).all(), "nothing saturates"


@pytest.mark.parametrize("quantise", [quantise_int8, quantise_e4m3_groups])
def test_zeros_stay_zeros(quantise: object) -> None:
    stored, scale = quantise(torch.zeros(3, 7))  # type: ignore[operator]
    assert stored.float().eq(0).all()
    assert scale.isfinite().all() and scale.gt(0).all()


HEADS, KV_HEADS, DIM_K, DIM_V, BLOCK, SCALE = 4, 2, 8, 6, 4, 0.1


def _pages(blocks: int, heads: int, dim: int, dtype: torch.dtype, device: str) -> Tensor:
    """Poison, seen as `[blocks, heads, block_size, dim]`: NaN in floats, -1 in int8."""
    raw = torch.full((blocks, heads * BLOCK * dim * dtype.itemsize + 32), 0xFF, dtype=torch.uint8)
    rows = raw.to(device)[:, 16:-16].view(dtype)
    return rows.unflatten(1, (heads, BLOCK, dim))


class _Quantised:
    """Random keys and values of some sequences, quantised into pages."""

    def __init__(self, lengths: Ragged, kind: str, device: str, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        rows, blocks = draw_tables(lengths, BLOCK, 3, draw)
        self.batch = make_batch(rows, num_decodes=lengths.num_decodes, device=device, block_size=4)
        self.q = torch.randn(lengths.num_tokens, HEADS, DIM_K, generator=draw).to(device)
        slots = [
            row.block(t // BLOCK) * BLOCK + t % BLOCK for row in rows for t in range(row.seq_len)
        ]
        self.slots = torch.tensor(slots, device=device)
        self.exact: list[Tensor] = []  # in pages, in float32
        self.stored: list[Tensor] = []
        self.scales: list[Tensor] = []
        for dim in (DIM_K, DIM_V):
            x = torch.randn(len(slots), KV_HEADS, dim, generator=draw).to(device)
            self.exact.append(self._write(x, blocks, torch.float32))
            if kind == "int8":
                x, scale = quantise_int8(x)
                self.scales.append(self._write(scale[..., None], blocks, torch.float32)[..., 0])
            else:
                self.scales.append(torch.tensor([0.01, 0.3], device=device))
                x = quantise_e4m3(x, self.scales[-1])
            self.stored.append(self._write(x, blocks, x.dtype))

    def _write(self, x: Tensor, blocks: int, dtype: torch.dtype) -> Tensor:
        pages = _pages(blocks, KV_HEADS, x.shape[-1], dtype, str(x.device))
        write_pages(x, pages.transpose(1, 2), self.slots)
        return pages

    def dequantised(self) -> list[Tensor]:
        return [
            dequantise(x, scale[..., None] if scale.dim() == 3 else scale[:, None, None], x_dtype)
            for x, scale, x_dtype in zip(self.stored, self.scales, [torch.float32] * 2, strict=True)
        ]

    def attend(self, k: Tensor, v: Tensor, *scales: Tensor) -> Tensor:
        keywords = dict(zip(("k_scale", "v_scale"), scales, strict=False))
        pages = self.batch.token_pages(TOKENS)
        return paged_attention(self.q, k, v, pages, self.batch, SCALE, **keywords)


@pytest.mark.parametrize("kind", ["fp8_e4m3", "int8"])
@bounded(20)
@given(lengths=ragged(longest=25, most_rows=3), seed=st.integers(0, 2**16))
def test_attention_reads_what_was_quantised(
    device: str, kind: str, lengths: Ragged, seed: int
) -> None:
    """As over the numbers that the bytes stand for, and within the bound of the exact ones."""
    case = _Quantised(lengths, kind, device, seed)
    out = case.attend(*case.stored, *case.scales)
    torch.testing.assert_close(out, case.attend(*case.dequantised()), rtol=1e-5, atol=1e-5)

    k, v = case.exact
    k_error, v_error = (
        (a - b).abs().nan_to_num() for a, b in zip(case.dequantised(), case.exact, strict=True)
    )
    largest_q = case.q.abs().amax((0, 1))
    off = SCALE * (k_error * largest_q).sum(-1).max()
    bound = v_error.max() + (torch.exp(2 * off) - 1) * v.nan_to_num().abs().max()
    assert (out - case.attend(k, v)).abs().max() <= bound
    assert bound < v.nan_to_num().abs().max() / 2, "a bound that says something"


@pytest.mark.parametrize("rank", [12, GROUP + 8])
@pytest.mark.parametrize("lengths", [Ragged(((9, 1), (21, 1), (0, 13), (6, 2)), 2)], ids=["mixed"])
def test_latents_are_read_as_they_were_quantised(device: str, rank: int, lengths: Ragged) -> None:
    draw = torch.Generator().manual_seed(rank)
    rows, blocks = draw_tables(lengths, BLOCK, 3, draw)
    batch = make_batch(rows, num_decodes=2, device=device, block_size=BLOCK)
    places = [(row, *divmod(t, BLOCK)) for row in rows for t in range(row.seq_len)]
    slots = torch.tensor(
        [row.block(block) * BLOCK + offset for row, block, offset in places], device=device
    )

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device)

    def written(x: Tensor) -> Tensor:
        pages = _pages(blocks, 1, x.shape[-1], x.dtype, device)[:, 0]
        write_pages(x, pages, slots)
        return pages

    c_kv, k_pe = normal(len(slots), rank), normal(len(slots), 4).bfloat16()
    stored, scale = quantise_e4m3_groups(c_kv)
    back = dequantise_groups(stored, scale, torch.float32)
    tokens = lengths.num_tokens
    queries = (normal(tokens, HEADS, DIM_K), normal(tokens, HEADS, 4))
    weights = [normal(HEADS, dim, rank) / rank**0.5 for dim in (DIM_K, DIM_V)]
    others = (*weights, batch.token_pages(TOKENS), batch, SCALE)
    out = mla_attention(*queries, written(stored), written(k_pe), *others, written(scale))
    expected = mla_attention(*queries, written(back), written(k_pe.float()), *others)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
