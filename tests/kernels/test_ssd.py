"""Mamba-2's chunked products against its recurrence."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.ssd import ssd
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


@dataclass(frozen=True)
class Sizes:
    """The first is the plain form; each other row of `ODD` changes a few columns."""

    heads: int = 4
    groups: int = 2
    head_dim: int = 16
    state_size: int = 16
    chunk_size: int = 16


PLAIN = Sizes()
ODD = (
    replace(PLAIN, groups=1),
    replace(PLAIN, groups=4),  # one for each head
    replace(PLAIN, heads=1, groups=1, head_dim=1, state_size=1),
    replace(PLAIN, heads=6, groups=3, head_dim=5, state_size=7),
    replace(PLAIN, chunk_size=1),
    replace(PLAIN, chunk_size=7),
    replace(PLAIN, chunk_size=256),
)


WIDE = replace(PLAIN, head_dim=32, state_size=128)
"""What AMX can multiply in chunks, where there is such a thing: the sizes of models."""


def _recurrence(rows: Sequence[Row], *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """`h = exp(dt A) h + dt x B^T`, `y = h C + D x`: every y, and each row's last state."""
    x, dt, A, B, C, D, before = inputs
    heads_per_group = x.shape[1] // B.shape[1]
    ys = torch.empty_like(x)
    states: list[Tensor] = []
    t = 0
    for row in rows:
        h = before[row.page].clone() if row.context else torch.zeros_like(before[row.page])
        for _ in range(row.queries):
            for head in range(x.shape[1]):
                group = head // heads_per_group
                update = dt[t, head] * torch.outer(x[t, head], B[t, group])
                h[head] = torch.exp(dt[t, head] * A[head]) * h[head] + update
                ys[t, head] = h[head] @ C[t, group] + D[head] * x[t, head]
            t += 1
        states.append(h)
    return ys, torch.stack(states)


def _inputs(
    rows: Sequence[Row], tokens: int, dtype: torch.dtype, sizes: Sizes, seed: int
) -> list[Tensor]:
    """x, dt, A, B, C, D, and pages of states: poison, but where a sequence goes on."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, sizes.heads, sizes.head_dim, generator=draw).to(dtype)
    shape = (tokens, sizes.groups, sizes.state_size)
    B, C = (torch.randn(shape, generator=draw).to(dtype) for _ in range(2))
    dt = torch.exp(torch.rand(tokens, sizes.heads, generator=draw) * 5 - 4)
    A = -torch.exp(torch.rand(sizes.heads, generator=draw) * 4 - 3)
    D = torch.randn(sizes.heads, generator=draw)
    shape = (sizes.heads, sizes.head_dim, sizes.state_size)
    state = torch.full((len(rows) + 2, *shape), torch.nan)
    for row in rows:
        if row.context:
            state[row.page] = torch.randn(shape, generator=draw)
    return [x, dt, A, B, C, D, state]


def _scan(
    inputs: Sequence[Tensor], batch: ForwardBatch, chunk_size: int, backend: StateBackend
) -> Tensor:
    x, dt, A, B, C, D, state = inputs
    pages = pages_of(batch)
    return ssd(x, dt, A, B, C, D, state, *pages, batch, chunk_size, backend)


def _check(
    lengths: Ragged,
    dtype: torch.dtype,
    device_and_backend: Backend,
    sizes: Sizes = PLAIN,
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
    y = _scan(on_device, batch, sizes.chunk_size, backend)
    after = on_device[-1].cpu()

    exact_y, exact_states = _recurrence(rows, *(part.double() for part in inputs))
    assert y.dtype == dtype
    assert_right(y, lambda *parts: _recurrence(rows, *parts)[0], *inputs)
    assert_small_rms_ratio(y, exact_y)
    used = [row.page for row in rows]
    assert_close(after[used], exact_states)
    unused = [page for page in range(len(after)) if page not in used]
    assert after[unused].isnan().all()


@bounded(25)
@given(lengths=ragged(), chunk_size=st.sampled_from([16, 32, 64]), seed=st.integers(0, 2**16))
def test_equals_the_recurrence(
    device_and_backend: Backend, dtype: torch.dtype, lengths: Ragged, chunk_size: int, seed: int
) -> None:
    sizes = replace(PLAIN, chunk_size=chunk_size)
    _check(lengths, dtype, device_and_backend, sizes, seed)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_extreme_batches(device_and_backend: Backend, dtype: torch.dtype, lengths: Ragged) -> None:
    _check(lengths, dtype, device_and_backend)


@pytest.mark.parametrize("sizes", ODD, ids=str)
def test_odd_sizes(device: str, dtype: torch.dtype, sizes: Sizes) -> None:
    lengths = Ragged(((3, 1), (1, 1), (0, 33), (5, 2), (0, 1)), 2)
    _check(lengths, dtype, (device, "reference"), sizes)


def test_tokens_that_forget_everything_leave_those_behind_them_exact(
    device_and_backend: Backend,
) -> None:
    """Sums of `dt A` that run far below zero must not cost later, slow tokens their digits."""
    device, backend = device_and_backend
    rows = [Row(0, 64, page=0)]
    inputs = _inputs(rows, 64, torch.float32, PLAIN, seed=0)
    inputs[1] = torch.where(torch.arange(64)[:, None] % 32 < 8, 30.0, 0.01).expand(64, 4)
    inputs[2] = torch.full((4,), -16.0)
    batch = make_batch(rows, num_decodes=0, device=device)
    on_device = [part.to(device, copy=True) for part in inputs]
    y = _scan(on_device, batch, 64, backend)
    # Where a token forgets everything its own update is large; the others count by themselves.
    slow = torch.arange(64) % 32 >= 16
    exact_y, _ = _recurrence(rows, *(part.double() for part in inputs))
    assert_close(y[slow.to(device)], exact_y[slow])


@bounded(15)
@given(lengths=ragged(longest=150, most_rows=3), seed=st.integers(0, 2**16))
def test_sizes_of_models_in_bfloat16(lengths: Ragged, seed: int) -> None:
    _check(lengths, torch.bfloat16, ("cpu", "numba"), WIDE, seed)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
@pytest.mark.parametrize(
    "sizes",
    [
        replace(WIDE, groups=1),
        replace(WIDE, groups=4),
        replace(WIDE, head_dim=80, state_size=64),
        replace(WIDE, state_size=256),
    ],
    ids=str,
)
def test_extreme_batches_of_sizes_of_models(lengths: Ragged, sizes: Sizes) -> None:
    _check(lengths, torch.bfloat16, ("cpu", "numba"), sizes)


def _go_on(cuts: Sequence[int], inputs: Sequence[Tensor], state: Tensor, begin: int = 0) -> Tensor:
    """y of a sequence of bfloat16 whose state, in page 1, is taken on from cut to cut."""
    x, dt, A, B, C, D, _ = inputs
    ys: list[Tensor] = []
    for start, stop in zip([begin, *cuts], [*cuts, len(x)], strict=True):
        row = Row(start, stop - start, page=1)
        batch = make_batch([row], num_decodes=row.queries == 1 and start > 0, device="cpu")
        parts = [part[start:stop] for part in (x, dt, B, C)]
        ys.append(_scan([*parts[:2], A, *parts[2:], D, state], batch, WIDE.chunk_size, "numba"))
    return torch.cat(ys)


def _room(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((3, WIDE.heads, WIDE.head_dim, WIDE.state_size), torch.nan, dtype=dtype)


def _exactly(inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """y and the state of the whole sequence."""
    row, room = Row(0, len(inputs[0]), page=0), _room(torch.float64)
    return _recurrence([row], *(part.double() for part in inputs[:6]), room)


def test_states_of_bfloat16_inputs_are_those_of_float32_wherever_chunks_end() -> None:
    inputs = _inputs([], 200, torch.bfloat16, WIDE, seed=0)
    exact_y, exact = _exactly(inputs)
    for cuts in ([], [1], [199], [64], [31, 80], [100, 132], list(range(20, 40))):
        state = _room()
        assert_small_rms_ratio(_go_on(cuts, inputs, state), exact_y)
        assert_close(state[1], exact[0])
        assert state[[0, 2]].isnan().all()


def test_tokens_that_forget_everything_leave_chunks_behind_them_exact() -> None:
    inputs = _inputs([], 192, torch.bfloat16, WIDE, seed=0)
    inputs[1] = torch.where(torch.arange(192)[:, None] % 40 < 8, 30.0, 0.01).expand(192, 4)
    inputs[2] = torch.full((4,), -16.0)
    exact_y, exact = _exactly(inputs)
    state = _room()
    y = _go_on([], inputs, state)
    assert_close(state[1], exact[0])
    slow = torch.arange(192) % 40 >= 16
    assert_small_rms_ratio(y[slow], exact_y[slow])


@numba.njit(parallel=True)
def _scale(numbers: np.ndarray, by: float) -> None:  # pragma: no cover  (compiled)
    for i in numba.prange(len(numbers)):
        numbers[i] *= by


def test_tiny_numbers_are_as_before_behind_a_chunk() -> None:
    inputs = _inputs([], 150, torch.bfloat16, WIDE, seed=0)
    _go_on([], inputs, _room())
    numbers = np.full(1000, 1e-30)
    _scale(numbers, 1e-280)
    assert (numbers > 0).all()
    assert (torch.full((10,), 1e-30) * 1e-10 > 0).all()


def test_a_state_of_bfloat16_is_rounded_where_a_row_ends() -> None:
    inputs, rounded = _inputs([], 150, torch.bfloat16, WIDE, seed=0), _room(torch.bfloat16)
    rounded[1] = torch.randn(rounded[1].shape, generator=torch.Generator().manual_seed(1))
    for begin in (0, 50):  # anew, and from what stands there
        state = rounded.float()
        ys = [_go_on([], inputs, into, begin) for into in (state, rounded)]
        assert torch.equal(*ys)
        assert torch.equal(state[1].bfloat16(), rounded[1])
        assert rounded[[0, 2]].isnan().all()


def test_bug_09_a_chunk_goes_on_from_the_state_before_it(device_and_backend: Backend) -> None:
    device, backend = device_and_backend
    x, dt, A, B, C, D, _ = _inputs([], 70, torch.float32, PLAIN, seed=0)

    def run(cuts: Sequence[int]) -> tuple[Tensor, Tensor]:
        state = torch.full((3, 4, 16, 16), torch.nan, device=device)
        ys: list[Tensor] = []
        for start, stop in zip([0, *cuts], [*cuts, 70], strict=True):
            row = Row(start, stop - start, page=1)
            batch = make_batch([row], num_decodes=row.queries == 1 and start > 0, device=device)
            parts = [part[start:stop].to(device) for part in (x, dt, B, C)]
            args = [*parts[:2], A.to(device), *parts[2:], D.to(device), state]
            ys.append(_scan(args, batch, PLAIN.chunk_size, backend))
        return torch.cat(ys), state[1]

    whole = run([])
    for cuts in ([1], [69], [16], [17, 64], [3, 4, 5, 40], list(range(1, 70))):
        for part, expected in zip(run(cuts), whole, strict=True):
            assert_close(part, expected.cpu())
