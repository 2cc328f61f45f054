"""Products with weights in blocks, oneDNN's or our own."""

import copy

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from hybridrt.kernels.cpu.packed_gated import packed_gated
from hybridrt.kernels.cpu.packed_linear import (
    ANY_NUMBER,
    AT_ONCE,
    FEWEST_CLAIMED,
    FEWEST_SHARED,
    most_tokens,
    next_job,
    packed_linear,
    share_of,
)
from hybridrt.kernels.cpu.streams import FEWEST_BYTES, MOST_TOKENS, streams
from hybridrt.kernels.cpu.tile_registers import HAS_TILES
from hybridrt.kernels.cpu.vectors import HAS_VECTORS
from hybridrt.kernels.linear import FEWEST_SINGLES, BlockedWeight, find_blocks, pack_weight
from hybridrt.layers.linear import Linear
from tests.harness.properties import bounded

CLAIMS = 4096  # an address like any other

has_blocks = pytest.mark.skipif(not HAS_VECTORS, reason="the processor has no AVX2")


def make_linear(
    inputs: int, outputs: int, bias: bool, dtype: torch.dtype = torch.bfloat16
) -> tuple[Linear, Tensor]:
    """A packed layer, and its weight as it was."""
    layer = Linear(inputs, outputs, bias).to(dtype)
    torch.manual_seed(inputs + outputs)
    layer.weight.data.normal_()
    if layer.bias is not None:
        layer.bias.data.normal_()
    weight = layer.weight.data.clone()
    layer.pack()
    return layer, weight


@bounded(60)
@given(
    pairs=st.integers(1, 300),
    outputs=st.integers(1, 300),
    tokens=st.integers(0, AT_ONCE + 2),
    bias=st.booleans(),
)
def test_is_the_product(pairs: int, outputs: int, tokens: int, bias: bool) -> None:
    layer, weight = make_linear(2 * pairs, outputs, bias)
    x = torch.randn(tokens, 2 * pairs).bfloat16()
    of_bias = None if layer.bias is None else layer.bias.double()
    expected = F.linear(x.double(), weight.double(), of_bias)
    # Rounded once at the end, and where a sum is near zero by its parts in float32.
    torch.testing.assert_close(layer(x).double(), expected, rtol=2**-8, atol=1e-4 * pairs**0.5)


@has_blocks
@bounded(20)
@given(
    # Beyond, oneDNN may add up in other order.
    tokens=st.integers(1, min(2 * AT_ONCE + 40, most_tokens())),
    outputs=st.sampled_from([64, 70, 2080, 5000]),  # the third one's results are streamed
)
def test_alone_is_as_beside_others(tokens: int, outputs: int) -> None:
    layer, _ = make_linear(130, outputs, bias=True)
    assert layer.blocked is not None
    x = torch.randn(tokens, 130).bfloat16()
    alone = torch.cat([layer(row[None]) for row in x])
    torch.testing.assert_close(layer(x), alone, rtol=0, atol=0)


@numba.njit
def can_stream(tokens: int, out: int, step: int) -> bool:
    return streams(tokens, out, step)


def test_whole_lines_of_some_tokens_are_streamed() -> None:
    """One result after another, and what isn't lines of memory, is written as ever."""
    assert can_stream(2, 128, FEWEST_BYTES) == HAS_TILES
    assert can_stream(MOST_TOKENS - 1, 0, 64 * 1001) == HAS_TILES
    assert not any(can_stream(tokens, 128, FEWEST_BYTES) for tokens in (1, MOST_TOKENS))
    assert not can_stream(32, 128, FEWEST_BYTES - 64)
    assert not can_stream(32, 96, FEWEST_BYTES) and not can_stream(32, 128, FEWEST_BYTES + 2)


@numba.njit
def shares_of(workers: int, tiles: bool, tokens: int) -> list[tuple[int, int, int, int, int]]:
    return [share_of(worker, workers, CLAIMS, tiles, tokens) for worker in range(workers)]


@bounded(30)
@given(workers=st.integers(1, 5), tiles=st.booleans(), tokens=st.integers(1, 5 * FEWEST_SHARED + 9))
def test_each_output_of_each_token_is_somebodys(workers: int, tiles: bool, tokens: int) -> None:
    parts, first = {}, 0
    for part, count, claims, begin, some in shares_of(workers, tiles, tokens):
        if claims:  # outputs that no other worker claims
            assert (part, count, claims, begin, some) == (0, 1, CLAIMS, 0, tokens)
            first = tokens
        elif count == 1:  # all outputs of its own tokens
            assert begin == first and some > 0
            first += some
        else:
            assert (begin, some) == (0, tokens)
            parts[part] = count
    if parts:
        assert parts == dict.fromkeys(range(workers), workers)
    else:
        assert first == tokens


@numba.njit
def jobs_in_turns(claims: int, workers: int, jobs: int) -> list[tuple[int, int]]:
    """Which worker has which job, where they claim them one after the other."""
    found, latest = [(0, 0) for _ in range(0)], [next_job(claims, -1) for _ in range(workers)]
    while min(latest) < jobs:
        for worker in range(workers):
            if latest[worker] < jobs:
                found.append((worker, latest[worker]))
                latest[worker] = next_job(claims, latest[worker])
    return found


@bounded(20)
@given(workers=st.integers(1, 4), jobs=st.integers(0, 20))
def test_every_job_is_claimed_once(workers: int, jobs: int) -> None:
    counter = np.zeros(1, np.int64)
    claimed = jobs_in_turns(counter.ctypes.data, workers, jobs)
    assert [job for _, job in claimed] == [*range(jobs)]
    assert {worker for worker, _ in claimed} == {*range(min(workers, jobs))}
    assert [job for _, job in jobs_in_turns(0, 1, jobs)] == [*range(jobs)]


@has_blocks
@pytest.mark.parametrize("gates", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("tokens", [FEWEST_CLAIMED, FEWEST_CLAIMED + 9, 61, 128])
def test_threads_claim_outputs_with_the_same_bits(tokens: int, gates: bool) -> None:
    layer, _ = make_linear(192, 640, bias=True)
    assert layer.blocked is not None
    x = torch.randn(tokens, 192).bfloat16()
    run = packed_gated if gates else packed_linear
    args = layer.blocked.address, layer.blocked.width, layer.blocked.block_bytes, layer.bias, 640
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        alone = run(x, *args)
        numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
        for _ in range(20):  # as who claims what is chance
            assert torch.equal(run(x, *args), alone)
    finally:
        numba.set_num_threads(before)


@has_blocks
@pytest.mark.parametrize("gates", [False, True], ids=["plain", "gated"])
def test_threads_share_tokens_or_outputs_with_the_same_bits(gates: bool) -> None:
    """Of many tokens each thread takes some, as one thread does of fewer."""
    layer, _ = make_linear(96, 640, bias=True)
    assert layer.blocked is not None
    x = torch.randn(2 * FEWEST_SHARED + 31, 96).bfloat16()
    run = packed_gated if gates else packed_linear
    args = layer.blocked.address, layer.blocked.width, layer.blocked.block_bytes, layer.bias, 640
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        alone = torch.cat([run(rows, *args) for rows in x.split(60)])
        numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
        assert torch.equal(run(x, *args), alone)
    finally:
        numba.set_num_threads(before)


@has_blocks
@bounded(30)
@given(
    tokens=st.integers(17, 32),
    steps=st.integers(1, 12),
    outputs=st.sampled_from([1000, 1024, 2080, 5003]),
    bias=st.booleans(),
)
def test_more_tokens_than_a_register_has_are_as_each_alone(
    tokens: int, steps: int, outputs: int, bias: bool
) -> None:
    layer, _ = make_linear(32 * steps, outputs, bias)
    x = torch.randn(tokens, 32 * steps).bfloat16()
    spoilt = torch.where(torch.arange(tokens)[:, None] == tokens // 2, torch.nan, x)
    alone = torch.cat([layer(row[None]) for row in x])
    assert torch.equal(layer(x), alone)
    found = layer(spoilt)
    alone[tokens // 2] = torch.nan
    torch.testing.assert_close(found, alone, rtol=0, atol=0, equal_nan=True)


@has_blocks
def test_takes_any_shape_and_strides() -> None:
    layer, _ = make_linear(96, 70, bias=False)
    x = torch.randn(3, 2, 192).bfloat16()[..., ::2]
    torch.testing.assert_close(layer(x), layer(x.reshape(6, 96)).view(3, 2, 70), rtol=0, atol=0)
    assert layer(x[0, 0]).shape == (70,)


@has_blocks
def test_nan_and_infinity_stay_in_their_rows() -> None:
    layer, _ = make_linear(64, 64, bias=False)
    x = torch.randn(7, 64).bfloat16()
    clean = layer(x)
    x[2, 5], x[4, 0] = float("nan"), float("inf")
    spoilt = layer(x)
    others = [0, 1, 3, 5, 6]
    assert torch.equal(spoilt[others], clean[others])
    assert spoilt[2].isnan().all() and not spoilt[4].isfinite().any()


@pytest.mark.skipif(most_tokens() == ANY_NUMBER, reason="nothing is left to oneDNN here")
def test_a_layout_that_is_not_known_is_left_to_onednn() -> None:
    weight = torch.randn(128, 64).bfloat16()
    packed = pack_weight(weight)
    assert find_blocks(packed, weight) is not None
    assert find_blocks(packed, weight.flip(0)) is None
    assert find_blocks(packed, weight[:, :63]) is None
    assert find_blocks(weight, weight) is None


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 5, 200])
def test_large_weights_of_float32_are_packed_too(tokens: int, bias: bool) -> None:
    layer, weight = make_linear(512, FEWEST_SINGLES // 512, bias, torch.float32)
    assert layer.weight.is_mkldnn and layer.blocked is None
    assert torch.equal(layer.weight.to_dense(), weight)
    x = torch.randn(tokens, 512)
    of_bias = None if layer.bias is None else layer.bias.double()
    expected = F.linear(x.double(), weight.double(), of_bias).float()
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-4)


def test_small_weights_of_float32_stay_as_they_are() -> None:
    layer, weight = make_linear(512, FEWEST_SINGLES // 512 - 1, False, torch.float32)
    assert torch.equal(layer.weight, weight)


@pytest.mark.skipif(most_tokens() != ANY_NUMBER or not HAS_VECTORS, reason="oneDNN's, or nobody's")
@pytest.mark.parametrize(("inputs", "is_ours"), [(130, True), (129, False)])
def test_blocks_are_our_own_where_our_kernel_takes_any_number(inputs: int, is_ours: bool) -> None:
    layer, weight = make_linear(inputs, 70, bias=True)
    assert layer.weight.is_meta == (layer.blocked is not None) == is_ours
    if is_ours:
        layer.pack()  # once is enough
        assert layer.blocked is not None and torch.equal(layer.blocked.plain(), weight)
    assert layer.weight.shape == weight.shape
    x = torch.randn(300, inputs).bfloat16()
    exact = F.linear(x.double(), weight.double()) + layer.bias
    torch.testing.assert_close(layer(x).double(), exact, rtol=2**-8, atol=1e-3)


@has_blocks
def test_is_not_copied() -> None:
    blocked = BlockedWeight(pack_weight(torch.randn(64, 64).bfloat16()), (64, 64))
    with pytest.raises(TypeError, match="can't be copied"):
        copy.deepcopy(blocked)
