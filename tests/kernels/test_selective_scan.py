"""Mamba-1's scan, in every backend, against its recurrence."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.selective_scan import selective_scan
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
from tests.harness.tolerance import assert_close, assert_right, assert_small_rms_ratio

Backend = tuple[str, StateBackend]


def _recurrence(rows: Sequence[Row], *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """`h = exp(dt A) h + dt B x`, `y = C . h + D x`: every y, and each row's last state."""
    x, dt, A, B, C, D, before = inputs
    ys: list[Tensor] = []
    states: list[Tensor] = []
    t = 0
    for row in rows:
        h = before[row.page] if row.context else torch.zeros_like(before[row.page])
        for _ in range(row.queries):
            h = torch.exp(dt[t][:, None] * A) * h + (dt[t] * x[t])[:, None] * B[t]
            ys.append((h * C[t]).sum(-1) + D * x[t])
            t += 1
        states.append(h)
    return torch.stack(ys), torch.stack(states)


def _inputs(
    rows: Sequence[Row], tokens: int, dtype: torch.dtype, sizes: tuple[int, int], seed: int
) -> list[Tensor]:
    """x, dt, A, B, C, D, and pages of states: poison, but where a sequence goes on."""
    channels, state_size = sizes
    draw = torch.Generator().manual_seed(seed)
    x, B, C = (
        torch.randn(tokens, size, generator=draw).to(dtype)
        for size in (channels, state_size, state_size)
    )
    # From hundredths to tens: some channels remember everything, others nothing.
    dt = torch.exp(torch.rand(tokens, channels, generator=draw) * 6 - 4)
    A = -torch.exp(torch.rand(channels, state_size, generator=draw) * 5 - 3)
    state = torch.full((len(rows) + 2, channels, state_size), torch.nan)
    for row in rows:
        if row.context:
            state[row.page] = torch.randn(channels, state_size, generator=draw)
    return [x, dt, A, B, C, torch.randn(channels, generator=draw), state]


def _scan(inputs: Sequence[Tensor], batch: ForwardBatch, backend: StateBackend) -> Tensor:
    x, dt, A, B, C, D, state = inputs
    return selective_scan(x, dt, A, B, C, D, state, *pages_of(batch), batch, backend)


def _check(
    lengths: Ragged,
    dtype: torch.dtype,
    device_and_backend: Backend,
    sizes: tuple[int, int] = (16, 8),
    seed: int = 0,
) -> None:
    """y by the tolerances, states right in float32 whatever x's dtype, poison untouched."""
    device, backend = device_and_backend
    lengths = in_company(lengths, dtype)
    draw = torch.Generator().manual_seed(seed)
    rows, _ = draw_tables(lengths, 1, spare=2, draw=draw)
    inputs = _inputs(rows, lengths.num_tokens, dtype, sizes, seed)
    batch = make_batch(rows, num_decodes=lengths.num_decodes, device=device)
    on_device = [part.to(device, copy=True) for part in inputs]
    y = _scan(on_device, batch, backend)
    after = on_device[-1].cpu()

    exact_y, exact_states = _recurrence(rows, *(part.double() for part in inputs))
    assert y.dtype == dtype
    assert_right(y, lambda *parts: _recurrence(rows, *parts)[0], *inputs)
    assert_small_rms_ratio(y, exact_y)
    used = [row.page for row in rows]
    assert_close(after[used], exact_states)
    unused = [page for page in range(len(after)) if page not in used]
    assert after[unused].isnan().all()


@bounded(40)
@given(lengths=ragged(), seed=st.integers(0, 2**16))
def test_equals_the_recurrence(
    device_and_backend: Backend, dtype: torch.dtype, lengths: Ragged, seed: int
) -> None:
    _check(lengths, dtype, device_and_backend, seed=seed)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_extreme_batches(device_and_backend: Backend, dtype: torch.dtype, lengths: Ragged) -> None:
    _check(lengths, dtype, device_and_backend)


@pytest.mark.parametrize("sizes", [(1, 1), (67, 3), (130, 16), (80, 16), (5, 33)], ids=str)
def test_odd_sizes(device_and_backend: Backend, dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    lengths = Ragged(((3, 1), (1, 1), (0, 33), (5, 2), (0, 1)), 2)
    _check(lengths, dtype, device_and_backend, sizes)


def test_a_state_in_bfloat16_is_rounded_where_it_is_stored_and_nowhere_else(
    device_and_backend: Backend,
) -> None:
    device, backend = device_and_backend
    rows = [Row(4, 1, page=2), Row(0, 40, page=0)]
    inputs = _inputs(rows, 41, torch.float32, (16, 8), seed=0)
    inputs[-1] = inputs[-1].bfloat16()
    batch = make_batch(rows, num_decodes=1, device=device)
    on_device = [part.to(device, copy=True) for part in inputs]
    y = _scan(on_device, batch, backend)
    exact_y, exact_states = _recurrence(rows, *(part.double() for part in inputs))
    assert_close(y, exact_y)
    stored = on_device[-1].cpu()[[2, 0]]
    assert stored.dtype == torch.bfloat16
    torch.testing.assert_close(stored.double(), exact_states, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("sizes", [(16, 8), (48, 16)], ids=str)
def test_bug_09_a_chunk_goes_on_from_the_state_before_it(
    device_and_backend: Backend, sizes: tuple[int, int]
) -> None:
    """On a CPU with the same bits: long rows have states in another order than short ones."""
    device, backend = device_and_backend
    x, dt, A, B, C, D, _ = _inputs([], 70, torch.float32, sizes, seed=0)

    def run(cuts: Sequence[int]) -> tuple[Tensor, Tensor]:
        state = torch.full((3, *sizes), torch.nan, device=device)
        ys: list[Tensor] = []
        for start, stop in zip([0, *cuts], [*cuts, 70], strict=True):
            row = Row(start, stop - start, page=1)
            batch = make_batch([row], num_decodes=row.queries == 1 and start > 0, device=device)
            parts = [part[start:stop].to(device) for part in (x, dt, B, C)]
            args = [*parts[:2], A.to(device), *parts[2:], D.to(device), state]
            ys.append(_scan(args, batch, backend))
        return torch.cat(ys), state[1]

    whole = run([])
    for cuts in ([1], [69], [32], [33, 64], [3, 4, 5, 40], list(range(1, 70))):
        for part, expected in zip(run(cuts), whole, strict=True):
            assert_close(part, expected.cpu())
            assert backend != "numba" or torch.equal(part, expected)
