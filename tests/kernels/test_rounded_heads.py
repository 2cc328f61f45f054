"""MLA's weights in few bits: what they stand for, and steps of decodes with them."""

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.cpu import mla_project_rounded
from hybridrt.kernels.cpu.quantised_linear import FEW, TOKENS
from hybridrt.kernels.quantised_linear import Bits
from hybridrt.kernels.rounded_heads import FEWEST, RoundedHeads, can_round_heads, round_heads
from hybridrt.layers.latent_expansion import LatentExpansion
from tests.harness.properties import bounded
from tests.harness.tolerance import rms

BITS = st.sampled_from((8, 4))
ROWS = st.sampled_from([1, 2, 5, FEW, FEW + 1, TOKENS + 1])


def _drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def _assert_rounded_products(found: Tensor, x: Tensor, weight: Tensor) -> None:
    """`[rows, heads, outputs]`: a result is rounded, and `weight`, which is what bits stand for."""
    exact = torch.einsum("thi,hoi->tho", x.double(), weight.double())
    scale = torch.einsum("th,ho->tho", x.double().norm(dim=-1), weight.double().norm(dim=-1))
    assert ((found - exact).abs() <= 2.0**-8 * exact.abs() + 2.0**-8 * scale).all()


@bounded(60)
@given(
    rows=ROWS,
    heads=st.integers(1, 5),
    nope=st.sampled_from([32, 64, 96, 128, 192]),
    rank=st.sampled_from([32, 72, 100, 512]),
    rope=st.sampled_from([0, 1, 6, 64]),
    bits=BITS,
    seed=st.integers(0, 99),
)
def test_queries_are_taken_to_latents(
    rows: int, heads: int, nope: int, rank: int, rope: int, bits: Bits, seed: int
) -> None:
    rounded, stands_for = round_heads(_drawn(seed, heads, rank, nope), bits)
    queries = torch.full((rows, heads, nope + rope + 2), torch.nan, dtype=torch.bfloat16)
    queries[..., 1:-1] = _drawn(seed + 1, rows, heads, nope + rope)
    _, q_nope, q_pe, _ = queries.split([1, nope, rope, 1], dim=-1)
    found = mla_project_rounded.absorb(q_nope, q_pe, rounded)
    assert torch.equal(found[..., rank:], q_pe)
    _assert_rounded_products(found[..., :rank], q_nope, stands_for)
    alone = [
        mla_project_rounded.absorb(q_nope[i : i + 1], q_pe[i : i + 1], rounded) for i in range(rows)
    ]
    assert torch.equal(found, torch.cat(alone))


@bounded(60)
@given(
    rows=ROWS,
    heads=st.integers(1, 5),
    rank=st.sampled_from([32, 64, 160, 512]),
    v_dim=st.sampled_from([1, 33, 64, 130]),
    bits=BITS,
    threads=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_latents_are_expanded_whatever_the_threads(
    rows: int, heads: int, rank: int, v_dim: int, bits: Bits, threads: int, seed: int
) -> None:
    rounded, stands_for = round_heads(_drawn(seed, heads, v_dim, rank), bits)
    latents, found = _drawn(seed + 1, rows, heads, rank), _drawn(seed, rows, heads, v_dim)
    mla_project_rounded.expand_values(latents, rounded, found)
    _assert_rounded_products(found, latents, stands_for)
    again = torch.full_like(found, torch.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mla_project_rounded, "SMALL", 0)
        patch.setattr(numba, "get_num_threads", lambda: threads)
        mla_project_rounded.expand_values(latents.float(), rounded, again)
    assert torch.equal(found, again)


@pytest.mark.parametrize(("bits", "share"), [(8, 0.0075), (4, 0.095)])
def test_the_error_is_that_of_other_weights(bits: Bits, share: float) -> None:
    weight = _drawn(0, 2, 512, 128)
    _, stands_for = round_heads(weight, bits)
    assert 0 < rms(stands_for - weight) / rms(weight) < share


def test_what_cannot_be_rounded_is_left() -> None:
    fits = torch.empty(2, 64, FEWEST, dtype=torch.bfloat16)
    assert can_round_heads(fits, 8) and can_round_heads(fits, 4)
    assert not can_round_heads(fits.float(), 8)
    assert not can_round_heads(fits[..., : FEWEST - 8], 8)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_layer_has_what_its_few_bits_stand_for(bits: Bits) -> None:
    expand = LatentExpansion(heads=3, nope_dim=64, v_dim=64, rank=128).bfloat16()
    expand.weight.data.copy_(_drawn(0, 384, 128))
    before, w_uk, w_uv = expand.num_bytes, expand.w_uk.clone(), expand.w_uv.clone()
    expand.pack(bits)
    assert expand.weight.is_meta and expand.num_bytes < before * (bits + 1) / 16
    sides = (expand.w_uk, w_uk, expand.rounded_uk), (expand.w_uv, w_uv, expand.rounded_uv)
    for now, then, rounded in sides:
        assert isinstance(rounded, RoundedHeads) and rounded.bits == bits
        assert 0 < rms(now - then) / rms(then) < 0.11
    latents, values = _drawn(1, 2, 3, 128), torch.empty(2, 3, 64, dtype=torch.bfloat16)
    assert expand.rounded_uv is not None
    mla_project_rounded.expand_values(latents, expand.rounded_uv, values)
    _assert_rounded_products(values, latents, expand.w_uv)
    expand.pack(bits)  # once is enough
    assert torch.equal(expand.w_uv, sides[1][0])


@pytest.mark.parametrize(
    ("nope", "bits", "rounds"), [(24, 4, True), (64, None, True), (64, 8, False)]
)
def test_a_layer_that_is_not_rounded_stays_as_it_is(
    nope: int, bits: Bits | None, rounds: bool
) -> None:
    expand = LatentExpansion(heads=2, nope_dim=nope, v_dim=32, rank=128).bfloat16()
    expand.rounds = rounds
    expand.weight.data.copy_(_drawn(0, 2 * (nope + 32), 128))
    before = expand.weight.clone()
    expand.pack(bits)
    assert expand.rounded_uk is expand.rounded_uv is None
    assert torch.equal(expand.weight, before) and expand.num_bytes == before.nbytes
