"""RWKV's sums over all pairs of tokens in a chunk against the definition, token by token."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.wkv import wkv
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


def _definition(
    rows: Sequence[Row], k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, *before: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Every y, and the last sums as they are, with nothing divided out."""
    ys: list[Tensor] = []
    sums: list[Tensor] = []
    t = 0
    for row in rows:
        above, below = torch.zeros_like(k[0]), torch.zeros_like(k[0])
        if row.context:
            above, below, peak = (part[row.page] for part in before)
            above, below = above * peak.exp(), below * peak.exp()
        for _ in range(row.queries):
            own = (k[t] + bonus).exp()
            ys.append((above + own * v[t]) / (below + own))
            above = decay.exp() * above + k[t].exp() * v[t]
            below = decay.exp() * below + k[t].exp()
            t += 1
        sums.append(torch.stack([above, below]))
    return torch.stack(ys), sums


def _inputs(
    rows: Sequence[Row], tokens: int, dtype: torch.dtype, channels: int, seed: int
) -> list[Tensor]:
    """Keys, values, decays, and pages of states: poison, but where a sequence goes on."""
    draw = torch.Generator().manual_seed(seed)
    k, v = (2 * torch.randn(tokens, channels, generator=draw) for _ in range(2))
    decay = -torch.exp(torch.rand(channels, generator=draw) * 7 - 6)
    bonus = torch.randn(channels, generator=draw)
    states = [torch.full((len(rows) + 2, channels), torch.nan) for _ in range(3)]
    for row in rows:
        for state in states if row.context else ():
            state[row.page] = torch.rand(channels, generator=draw) + 0.5
    return [k.to(dtype), v.to(dtype), decay, bonus, *states]


def _run(inputs: Sequence[Tensor], batch: ForwardBatch) -> Tensor:
    k, v, decay, bonus, *states = inputs
    return wkv(k, v, decay, bonus, states[0], states[1], states[2], *pages_of(batch), batch)


def _check(
    lengths: Ragged, dtype: torch.dtype, device: str, channels: int = 10, seed: int = 0
) -> None:
    """y by the tolerances, sums right in float32 whatever v's dtype, poison untouched."""
    lengths = in_company(lengths, dtype)
    rows, _ = draw_tables(lengths, 1, spare=2, draw=torch.Generator().manual_seed(seed))
    inputs = _inputs(rows, lengths.num_tokens, dtype, channels, seed)
    batch = make_batch(rows, num_decodes=lengths.num_decodes, device=device)
    on_device = [part.to(device, copy=True) for part in inputs]
    y = _run(on_device, batch)
    exact_y, exact_sums = _definition(rows, *(part.double() for part in inputs))
    assert y.dtype == dtype
    assert_right(y, lambda *parts: _definition(rows, *parts)[0], *inputs)
    assert_small_rms_ratio(y, exact_y)
    above, below, peak = (state.cpu().double() for state in on_device[-3:])
    for row, exact in zip(rows, exact_sums, strict=True):
        sums = torch.stack([above, below])[:, row.page] * peak[row.page].exp()
        assert_close(sums, exact)
    unused = [page for page in range(len(peak)) if page not in [row.page for row in rows]]
    assert torch.stack([above, below, peak])[:, unused].isnan().all()


@bounded(25)
@given(lengths=ragged(), seed=st.integers(0, 2**16))
def test_equals_the_definition(device: str, dtype: torch.dtype, lengths: Ragged, seed: int) -> None:
    _check(lengths, dtype, device, seed=seed)


@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_extreme_batches(device: str, dtype: torch.dtype, lengths: Ragged) -> None:
    _check(lengths, dtype, device)


@pytest.mark.parametrize("level", [-300.0, 0.0, 300.0])
@pytest.mark.parametrize("cuts", [[], [1], [33, 40], [*range(1, 70)]], ids=str)
def test_keys_count_against_each_other_only(device: str, level: float, cuts: list[int]) -> None:
    """However large all are, the means are the same, and in whichever steps they are made."""
    k, v, decay, bonus, *_ = _inputs([], 70, torch.float32, 10, seed=0)
    right, _ = _definition([Row(0, 70)], *(p.double() for p in (k, v, decay, bonus)))
    states = [torch.full((3, 10), torch.nan, device=device) for _ in range(3)]
    ys: list[Tensor] = []
    for start, stop in zip([0, *cuts], [*cuts, 70], strict=True):
        row = Row(start, stop - start, page=1)
        batch = make_batch([row], num_decodes=row.queries == 1 and start > 0, device=device)
        parts = [(k + level)[start:stop], v[start:stop], decay, bonus]
        ys.append(_run([*(part.to(device) for part in parts), *states], batch))
    # A key of 300 is rounded to 3e-5.
    torch.testing.assert_close(torch.cat(ys).cpu().double(), right, rtol=0, atol=1e-3)
