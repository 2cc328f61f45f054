"""The mLSTM's matrix products against its recurrence, with states as large as they are."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import logsigmoid

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.mlstm import mlstm
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

HEADS, EPS = 3, 0.01


def _recurrence(
    rows: Sequence[Row], q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *before: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Every y, and the last states."""
    ys: list[Tensor] = []
    states: list[list[Tensor]] = []
    t = 0
    for row in rows:
        c, n, m = (part[row.page] if row.context else 0 * part[0].nan_to_num() for part in before)
        c, n = c * m.exp()[:, None, None], n * m.exp()[:, None]
        for _ in range(row.queries):
            keeps, adds = f[t].exp()[:, None], i[t].exp()[:, None] * k[t]
            c = keeps[..., None] * c + adds[..., None] * v[t][:, None]
            n = keeps * n + adds
            m = torch.maximum(f[t] + m, i[t])
            length = (n * q[t]).sum(-1).abs().clamp(min=1) + EPS * m.exp()
            ys.append((q[t][..., None] * c).sum(1) / length[:, None])
            t += 1
        states.append([c / m.exp()[:, None, None], n / m.exp()[:, None], m])
    return torch.stack(ys), [torch.stack(parts) for parts in zip(*states, strict=True)]


def _inputs(
    rows: Sequence[Row], tokens: int, dtype: torch.dtype, sizes: tuple[int, int], seed: int
) -> list[Tensor]:
    """q, k, v, both gates, and pages of states: poison, but where a sequence goes on."""
    draw = torch.Generator().manual_seed(seed)
    keys, values = sizes
    q, k = (torch.randn(tokens, HEADS, keys, generator=draw) for _ in range(2))
    v = torch.randn(tokens, HEADS, values, generator=draw)
    log_input = 1.5 * torch.randn(tokens, HEADS, generator=draw)
    log_forget = logsigmoid(3 * torch.randn(tokens, HEADS, generator=draw) + 3)
    shapes = ((keys, values), (keys,), ())
    states = [torch.full((len(rows) + 2, HEADS, *shape), torch.nan) for shape in shapes]
    for row in rows:
        for state in states if row.context else ():
            state[row.page] = torch.randn(state.shape[1:], generator=draw)
    parts = [q * keys**-0.5, k, v]
    return [*(part.to(dtype) for part in parts), log_input, log_forget, *states]


def _run(inputs: Sequence[Tensor], batch: ForwardBatch) -> Tensor:
    q, k, v, log_input, log_forget, c, n, m = inputs
    return mlstm(q, k, v, log_input, log_forget, c, n, m, *pages_of(batch), batch, EPS)


def _check(
    lengths: Ragged,
    dtype: torch.dtype,
    device: str,
    sizes: tuple[int, int] = (8, 6),
    seed: int = 0,
) -> None:
    """y by the tolerances, states right in float32 whatever v's dtype, poison untouched."""
    lengths = in_company(lengths, dtype)
    rows, _ = draw_tables(lengths, 1, spare=2, draw=torch.Generator().manual_seed(seed))
    inputs = _inputs(rows, lengths.num_tokens, dtype, sizes, seed)
    batch = make_batch(rows, num_decodes=lengths.num_decodes, device=device)
    on_device = [part.to(device, copy=True) for part in inputs]
    y = _run(on_device, batch)
    exact_y, exact_states = _recurrence(rows, *(part.double() for part in inputs))
    assert y.dtype == dtype
    assert_right(y, lambda *parts: _recurrence(rows, *parts)[0], *inputs)
    assert_small_rms_ratio(y, exact_y)
    used = [row.page for row in rows]
    for after, exact in zip(on_device[-3:], exact_states, strict=True):
        assert_close(after.cpu()[used], exact)
        assert after.cpu()[[page for page in range(len(after)) if page not in used]].isnan().all()


@bounded(25)
@given(lengths=ragged(), seed=st.integers(0, 2**16))
def test_equals_the_recurrence(device: str, dtype: torch.dtype, lengths: Ragged, seed: int) -> None:
    _check(lengths, dtype, device, seed=seed)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_extreme_batches(device: str, dtype: torch.dtype, lengths: Ragged) -> None:
    _check(lengths, dtype, device)


@pytest.mark.parametrize("sizes", [(1, 1), (5, 7), (16, 3)], ids=str)
def test_odd_sizes(device: str, dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    lengths = Ragged(((3, 1), (1, 1), (0, 33), (5, 2), (0, 1)), 2)
    _check(lengths, dtype, device, sizes)


@pytest.mark.parametrize("level", [-40.0, 0.0, 40.0])
def test_large_and_small_gates_neither_overflow_nor_vanish(device: str, level: float) -> None:
    rows = [Row(0, 80, page=0), Row(9, 40, page=1)]
    inputs = _inputs(rows, 120, torch.float32, (8, 6), seed=0)
    inputs[3] = inputs[3] + level
    # Without signs: a small sum of large numbers has few digits in any order.
    inputs[:2] = [part.abs() for part in inputs[:2]]
    batch = make_batch(rows, num_decodes=0, device=device)
    on_device = [part.to(device, copy=True) for part in inputs]
    assert_close(_run(on_device, batch), _recurrence(rows, *(p.double() for p in inputs))[0])


def test_a_chunk_goes_on_from_the_state_before_it(device: str) -> None:
    *inputs, _, _, _ = _inputs([], 70, torch.float32, (8, 6), seed=0)

    def run(cuts: Sequence[int]) -> list[Tensor]:
        shapes = ((8, 6), (8,), ())
        states = [torch.full((3, HEADS, *shape), torch.nan, device=device) for shape in shapes]
        ys: list[Tensor] = []
        for start, stop in zip([0, *cuts], [*cuts, 70], strict=True):
            row = Row(start, stop - start, page=1)
            batch = make_batch([row], num_decodes=row.queries == 1 and start > 0, device=device)
            parts = [part[start:stop].to(device) for part in inputs]
            ys.append(_run([*parts, *states], batch))
        return [torch.cat(ys), *(state[1] for state in states)]

    whole = run([])
    for cuts in ([1], [69], [16], [17, 64], [3, 4, 5, 40], list(range(1, 70))):
        for part, expected in zip(run(cuts), whole, strict=True):
            assert_close(part, expected.cpu())
