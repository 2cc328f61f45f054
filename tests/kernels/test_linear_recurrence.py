"""The recurrence of RG-LRU against its definition, token by token."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.linear_recurrence import linear_recurrence
from tests.harness.batches import (
    EXTREMES,
    Ragged,
    Row,
    draw_tables,
    make_batch,
    pages_of,
    ragged,
)
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close

Backend = tuple[str, StateBackend]


def _definition(rows: Sequence[Row], *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """`h = decay h + update`: every h, and each row's last."""
    update, decay, before = inputs
    hs: list[Tensor] = []
    states: list[Tensor] = []
    for row in rows:
        h = before[row.page] if row.context else torch.zeros_like(before[row.page])
        for _ in range(row.queries):
            h = decay[len(hs)] * h + update[len(hs)]
            hs.append(h)
        states.append(h)
    return torch.stack(hs), torch.stack(states)


def _inputs(rows: Sequence[Row], tokens: int, channels: int, seed: int) -> list[Tensor]:
    """Updates, decays of which some are 0 and some nearly 1, and pages, poison where unused."""
    draw = torch.Generator().manual_seed(seed)
    update = torch.randn(tokens, channels, generator=draw)
    decay = 1 - torch.exp(torch.rand(tokens, channels, generator=draw) * 7 - 7)
    decay = decay * (torch.rand(tokens, 1, generator=draw) > 0.05)
    state = torch.full((len(rows) + 2, channels), torch.nan)
    for row in rows:
        if row.context:
            state[row.page] = torch.randn(channels, generator=draw)
    return [update, decay, state]


def _run(inputs: Sequence[Tensor], batch: ForwardBatch, backend: StateBackend) -> Tensor:
    return linear_recurrence(*inputs, *pages_of(batch), batch, backend)


def _check(lengths: Ragged, device_and_backend: Backend, channels: int = 16, seed: int = 0) -> None:
    device, backend = device_and_backend
    draw = torch.Generator().manual_seed(seed)
    rows, _ = draw_tables(lengths, 1, spare=2, draw=draw)
    inputs = _inputs(rows, lengths.num_tokens, channels, seed)
    batch = make_batch(rows, num_decodes=lengths.num_decodes, device=device)
    on_device = [part.to(device, copy=True) for part in inputs]
    h = _run(on_device, batch, backend)
    after = on_device[-1].cpu()

    exact, exact_states = _definition(rows, *(part.double() for part in inputs))
    assert_close(h, exact)
    used = [row.page for row in rows]
    assert_close(after[used], exact_states)
    unused = [page for page in range(len(after)) if page not in used]
    assert after[unused].isnan().all()


@bounded(40)
@given(lengths=ragged(), channels=st.integers(1, 70), seed=st.integers(0, 2**16))
def test_equals_the_recurrence(
    device_and_backend: Backend, lengths: Ragged, channels: int, seed: int
) -> None:
    _check(lengths, device_and_backend, channels, seed)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_extreme_batches(device_and_backend: Backend, lengths: Ragged) -> None:
    _check(lengths, device_and_backend)


def test_chunks_longer_than_a_scan(device_and_backend: Backend) -> None:
    _check(Ragged(((5, 1), (0, 700), (3, 256), (1, 257)), 1), device_and_backend)


def test_a_state_in_bfloat16_is_rounded_where_it_is_stored_and_nowhere_else(
    device_and_backend: Backend,
) -> None:
    device, backend = device_and_backend
    rows = [Row(4, 1, page=2), Row(0, 40, page=0)]
    inputs = _inputs(rows, 41, 16, seed=0)
    inputs[-1] = inputs[-1].bfloat16()
    batch = make_batch(rows, num_decodes=1, device=device)
    on_device = [part.to(device, copy=True) for part in inputs]
    h = _run(on_device, batch, backend)
    exact, exact_states = _definition(rows, *(part.double() for part in inputs))
    assert_close(h, exact)
    stored = on_device[-1].cpu()[[2, 0]]
    assert stored.dtype == torch.bfloat16
    torch.testing.assert_close(stored.double(), exact_states, rtol=2**-8, atol=1e-6)
