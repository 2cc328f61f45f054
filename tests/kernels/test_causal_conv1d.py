"""The convolution against its sum, written out token by token and tap by tap."""

from collections.abc import Sequence
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.causal_conv1d import causal_conv1d
from tests.harness.batches import (
    EXTREMES,
    Ragged,
    Row,
    draw_tables,
    in_company,
    make_batch,
    pages_of,
    ragged,
)
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_right


def _windows(rows: Sequence[Row], x: Tensor, conv_state: Tensor) -> list[Tensor]:
    """Each row's inputs, those of `width - 1` tokens before it first."""
    windows: list[Tensor] = []
    start = 0
    for row in rows:
        stop = start + row.queries
        history = conv_state[row.page] if row.context else torch.zeros_like(conv_state[row.page])
        windows.append(torch.cat([history, x[start:stop]]))
        start = stop
    return windows


def _definition(
    rows: Sequence[Row], activated: bool, x: Tensor, weight: Tensor, *rest: Tensor
) -> Tensor:
    *bias, conv_state = rest
    out: list[Tensor] = []
    for row, window in zip(rows, _windows(rows, x, conv_state), strict=True):
        for t in range(row.queries):
            total = bias[0] if bias else torch.zeros_like(x[0])
            for k in range(weight.shape[1]):
                total = total + weight[:, k] * window[t + k]
            out.append(total * torch.sigmoid(total) if activated else total)
    return torch.stack(out)


def _check(
    lengths: Ragged,
    dtype: torch.dtype,
    device: str,
    backend: StateBackend = "reference",
    channels: int = 16,
    width: int = 4,
    has_bias: bool = True,
    seed: int = 0,
    activated: bool = True,
) -> None:
    """Output by the tolerances; states bit for bit, and poison where nobody's state is."""
    lengths = in_company(lengths, dtype)
    draw = torch.Generator().manual_seed(seed)
    rows, _ = draw_tables(lengths, 1, spare=2, draw=draw)
    x = torch.randn(lengths.num_tokens, channels, generator=draw).to(dtype)
    weight = torch.randn(channels, width, generator=draw).to(dtype)
    bias = [torch.randn(channels, generator=draw).to(dtype)] if has_bias else []
    state = torch.full((len(rows) + 2, width - 1, channels), torch.nan, dtype=dtype)
    for row in rows:
        if row.context:
            state[row.page] = torch.randn(width - 1, channels, generator=draw).to(dtype)

    batch = make_batch(rows, num_decodes=lengths.num_decodes, device=device)
    after = state.to(device, copy=True)
    out = causal_conv1d(
        x.to(device),
        weight.to(device),
        bias[0].to(device) if bias else None,
        after,
        *pages_of(batch),
        batch,
        backend,
        "silu" if activated else None,
    )
    assert out.dtype == dtype
    definition = partial(_definition, rows, activated)
    assert_right(out, definition, x, weight, *bias, state)
    expected = torch.full_like(state, torch.nan)
    for row, window in zip(rows, _windows(rows, x, state), strict=True):
        expected[row.page] = window[len(window) - (width - 1) :]
    torch.testing.assert_close(after.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@bounded(40)
@given(
    lengths=ragged(), width=st.integers(2, 4), has_bias=st.booleans(), seed=st.integers(0, 2**16)
)
def test_equals_the_sum_over_taps(
    device_and_backend: tuple[str, StateBackend],
    dtype: torch.dtype,
    lengths: Ragged,
    width: int,
    has_bias: bool,
    seed: int,
) -> None:
    device, backend = device_and_backend
    _check(lengths, dtype, device, backend, width=width, has_bias=has_bias, seed=seed)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_extreme_batches(
    device_and_backend: tuple[str, StateBackend], dtype: torch.dtype, lengths: Ragged
) -> None:
    _check(lengths, dtype, *device_and_backend)


@pytest.mark.parametrize("has_bias", [False, True])
def test_without_activation_it_is_the_sum_itself(
    device_and_backend: tuple[str, StateBackend], dtype: torch.dtype, has_bias: bool
) -> None:
    device, backend = device_and_backend
    lengths = Ragged(((3, 1), (0, 9), (5, 2), (0, 1)), 1)
    for width in (2, 3, 7):
        _check(lengths, dtype, device, backend, 16, width, has_bias, activated=False)


SIZES = [(1, 4), (33, 3), (7, 1), (5, 7), (300, 2), (2100, 4)]


@pytest.mark.parametrize(("channels", "width"), SIZES)
def test_odd_sizes(device: str, dtype: torch.dtype, channels: int, width: int) -> None:
    lengths = Ragged(((3, 1), (0, 9), (5, 2), (0, 1)), 1)
    _check(lengths, dtype, device, channels=channels, width=width)


@pytest.mark.parametrize(("channels", "width"), SIZES)
def test_odd_sizes_in_numba(channels: int, width: int) -> None:
    lengths = Ragged(((3, 1), (0, 9), (5, 2), (0, 1)), 1)
    _check(lengths, torch.float32, "cpu", "numba", channels, width)


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_inputs_may_be_a_part_of_wider_rows(backend: StateBackend) -> None:
    draw = torch.Generator().manual_seed(0)
    wide, weight = torch.randn(9, 30, generator=draw), torch.randn(16, 4, generator=draw)
    batch = make_batch([Row(0, 9, page=1)], num_decodes=0)
    outs = [
        causal_conv1d(x, weight, None, torch.zeros(2, 3, 16), *pages_of(batch), batch, backend)
        for x in (wide[:, 5:21], wide[:, 5:21].contiguous(), wide.t().contiguous().t()[:, 5:21])
    ]
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


@pytest.mark.parametrize(
    "lengths", [*EXTREMES, Ragged(((3, 1), (0, 9), (5, 2), (0, 1)), 1)], ids=str
)
def test_gated_it_is_the_products_one_behind_the_other(
    device_and_backend: tuple[str, StateBackend], dtype: torch.dtype, lengths: Ragged
) -> None:
    device, backend = device_and_backend
    lengths, draw = in_company(lengths, dtype), torch.Generator().manual_seed(0)
    rows, _ = draw_tables(lengths, 1, spare=2, draw=draw)
    batch = make_batch(rows, num_decodes=lengths.num_decodes, device=device)
    # causal-conv1d takes multiples of 8.
    counts = (16, 24, 2104) if backend == "mamba_ssm" else (16, 21, 2100)
    for channels, width in zip(counts, (3, 2, 4), strict=True):
        wide = torch.randn(lengths.num_tokens, 3 * channels, generator=draw).to(device, dtype)
        before, after, x = wide.chunk(3, dim=1)
        weight = torch.randn(channels, width, generator=draw).to(device, dtype)
        state = torch.randn(len(rows) + 2, width - 1, channels, generator=draw).to(device, dtype)
        gates = ((before, after), (before, None), (None, after))
        for (first, last), activation in product(gates, (None, "silu")):
            states = [state.clone() for _ in range(2)]
            y, gated = (
                causal_conv1d(
                    inputs, weight, None, own, *pages_of(batch), batch, backend, activation, *more
                )
                for inputs, own, more in zip(
                    (x if first is None else first * x, x), states, ((), (first, last)), strict=True
                )
            )
            assert torch.equal(gated, y if last is None else last * y)
            assert torch.equal(*states)


def test_silu_in_numba_is_silu_however_large_its_argument() -> None:
    x = torch.cat([torch.linspace(-20, 20, 999), torch.tensor([-1e30, -1000, -88, 88, 1e30])])
    batch = make_batch([Row(0, len(x), page=0)], num_decodes=0)
    state = torch.zeros(1, 1, 1)
    weight = torch.tensor([[0.0, 1.0]])
    out = causal_conv1d(x[:, None], weight, None, state, *pages_of(batch), batch, "numba")
    torch.testing.assert_close(out[:, 0], torch.nn.functional.silu(x), rtol=1e-5, atol=1e-30)


def test_bug_09_a_chunk_goes_on_from_the_inputs_before_it(
    device_and_backend: tuple[str, StateBackend],
) -> None:
    """Cut anywhere, chunks shorter than the convolution among them, the result is the same."""
    device, backend = device_and_backend
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(11, 16, generator=draw).to(device)
    weight = torch.randn(16, 4, generator=draw).to(device)

    def run(cuts: Sequence[int]) -> Tensor:
        state = torch.full((3, 3, 16), torch.nan, device=device)
        parts: list[Tensor] = []
        for start, stop in zip([0, *cuts], [*cuts, len(x)], strict=True):
            row = Row(start, stop - start, page=1)
            batch = make_batch([row], num_decodes=row.queries == 1 and start > 0, device=device)
            pages = pages_of(batch)
            parts.append(causal_conv1d(x[start:stop], weight, None, state, *pages, batch, backend))
        return torch.cat(parts)

    whole = run([])
    for cuts in ([1], [2, 3], [5], [1, 2, 3, 4], [2, 4, 6, 8, 10], list(range(1, 11))):
        torch.testing.assert_close(run(cuts), whole, rtol=0, atol=1e-6)
