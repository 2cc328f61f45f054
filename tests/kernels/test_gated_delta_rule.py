"""The delta rule's triangular systems against its recurrence, for both kinds of decay."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.gated_delta_rule import gated_delta_rule
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
    key_heads: int = 2
    key_dim: int = 16
    value_dim: int = 12
    decay_per_channel: bool = False


PLAIN = Sizes()
PER_CHANNEL = replace(PLAIN, key_heads=4, decay_per_channel=True)
BOTH = pytest.mark.parametrize("sizes", [PLAIN, PER_CHANNEL], ids=["per head", "per channel"])
ODD = (
    replace(PLAIN, key_heads=1),
    replace(PLAIN, key_heads=4),  # one for each head
    replace(PLAIN, heads=1, key_heads=1, key_dim=1, value_dim=1),
    replace(PLAIN, heads=6, key_heads=3, key_dim=5, value_dim=7),
    replace(PER_CHANNEL, heads=1, key_heads=1, key_dim=2, value_dim=1),
    replace(PER_CHANNEL, heads=6, key_heads=3, key_dim=5, value_dim=7),
    replace(PLAIN, key_dim=24, value_dim=90),
    replace(PER_CHANNEL, key_dim=24, value_dim=64),
    replace(PLAIN, key_dim=24, value_dim=128),
    replace(PER_CHANNEL, heads=3, key_heads=3, key_dim=5, value_dim=200),
)


def _recurrence(rows: Sequence[Row], *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Decay, correct what the state answers to k, answer to q: every y, and the last states."""
    q, k, v, g, beta, before = inputs
    repeats = v.shape[1] // k.shape[1]
    q, k = q.repeat_interleave(repeats, dim=1), k.repeat_interleave(repeats, dim=1)
    decay = torch.exp(g).view(*beta.shape, -1)
    ys: list[Tensor] = []
    states: list[Tensor] = []
    t = 0
    for row in rows:
        state = before[row.page] if row.context else torch.zeros_like(before[row.page])
        for _ in range(row.queries):
            state = decay[t][..., None] * state
            answer = (k[t][..., None] * state).sum(1)
            error = beta[t][:, None] * (v[t] - answer)
            state = state + k[t][..., None] * error[:, None]
            ys.append((q[t][..., None] * state).sum(1))
            t += 1
        states.append(state)
    return torch.stack(ys), torch.stack(states)


def _inputs(
    rows: Sequence[Row], tokens: int, dtype: torch.dtype, sizes: Sizes, seed: int
) -> list[Tensor]:
    """q, k, v, g, beta, and pages of states: poison, but where a sequence goes on."""
    draw = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(tokens, sizes.key_heads, sizes.key_dim, generator=draw) for _ in range(2))
    k = torch.nn.functional.normalize(k, dim=-1)
    v = torch.randn(tokens, sizes.heads, sizes.value_dim, generator=draw)
    channels = [sizes.key_dim] if sizes.decay_per_channel else []
    # Memories from a third of a token to a thousand.
    g = -torch.exp(torch.rand(tokens, sizes.heads, *channels, generator=draw) * 8 - 7)
    beta = torch.rand(tokens, sizes.heads, generator=draw)
    state = torch.full((len(rows) + 2, sizes.heads, sizes.key_dim, sizes.value_dim), torch.nan)
    for row in rows:
        if row.context:
            state[row.page] = torch.randn(state.shape[1:], generator=draw)
    return [q.to(dtype), k.to(dtype), v.to(dtype), g, beta, state]


def _run(inputs: Sequence[Tensor], batch: ForwardBatch, backend: StateBackend) -> Tensor:
    q, k, v, g, beta, state = inputs
    return gated_delta_rule(q, k, v, g, beta, state, *pages_of(batch), batch, backend)


def _check(
    lengths: Ragged,
    dtype: torch.dtype,
    device_and_backend: Backend,
    sizes: Sizes = PLAIN,
    seed: int = 0,
) -> None:
    """y by the tolerances, states right in float32 whatever v's dtype, poison untouched."""
    device, backend = device_and_backend
    lengths = in_company(lengths, dtype)
    draw = torch.Generator().manual_seed(seed)
    rows, _ = draw_tables(lengths, 1, spare=2, draw=draw)
    inputs = _inputs(rows, lengths.num_tokens, dtype, sizes, seed)
    batch = make_batch(rows, num_decodes=lengths.num_decodes, device=device)
    on_device = [part.to(device, copy=True) for part in inputs]
    y = _run(on_device, batch, backend)
    after = on_device[-1].cpu()

    exact_y, exact_states = _recurrence(rows, *(part.double() for part in inputs))
    assert y.dtype == dtype
    assert_right(y, lambda *parts: _recurrence(rows, *parts)[0], *inputs)
    assert_small_rms_ratio(y, exact_y)
    used = [row.page for row in rows]
    assert_close(after[used], exact_states)
    unused = [page for page in range(len(after)) if page not in used]
    assert after[unused].isnan().all()


@BOTH
@bounded(25)
@given(lengths=ragged(), seed=st.integers(0, 2**16))
def test_equals_the_recurrence(
    device_and_backend: Backend, dtype: torch.dtype, sizes: Sizes, lengths: Ragged, seed: int
) -> None:
    _check(lengths, dtype, device_and_backend, sizes, seed)


@BOTH
@pytest.mark.parametrize("lengths", EXTREMES, ids=str)
def test_extreme_batches(
    device_and_backend: Backend, dtype: torch.dtype, sizes: Sizes, lengths: Ragged
) -> None:
    _check(lengths, dtype, device_and_backend, sizes)


@pytest.mark.parametrize("sizes", ODD, ids=str)
def test_odd_sizes(device_and_backend: Backend, dtype: torch.dtype, sizes: Sizes) -> None:
    lengths = Ragged(((3, 1), (1, 1), (0, 33), (5, 2), (0, 1)), 2)
    _check(lengths, dtype, device_and_backend, sizes)


def test_columns_are_the_same_alone_and_among_others() -> None:
    """In numba, which takes up to eight vectors of them at once."""
    rows = [Row(5, 1, page=1), Row(9, 1, page=0)]
    *inputs, state = _inputs(rows, 2, torch.bfloat16, replace(PLAIN, value_dim=328), seed=0)
    v, batch = inputs[2], make_batch(rows, num_decodes=2)
    whole, parts = state.clone(), [part.contiguous() for part in state.split(41, dim=-1)]
    y = _run([*inputs, whole], batch, "numba")
    of_parts = []
    for some, part in zip(v.split(41, dim=-1), parts, strict=True):
        inputs[2] = some.contiguous()
        of_parts.append(_run([*inputs, part], batch, "numba"))
    assert torch.equal(y, torch.cat(of_parts, dim=-1))
    assert torch.equal(whole[:2], torch.cat(parts, dim=-1)[:2])


@BOTH
def test_one_decay_for_all_channels_is_a_decay_a_head(
    device_and_backend: Backend, sizes: Sizes
) -> None:
    device, backend = device_and_backend
    rows = [Row(4, 70, page=1)]
    per_head = _inputs(rows, 70, torch.float32, replace(sizes, decay_per_channel=False), seed=0)
    per_channel = [part.clone() for part in per_head]
    per_channel[3] = per_head[3][..., None].expand(-1, -1, sizes.key_dim)
    batch = make_batch(rows, num_decodes=0, device=device)
    outs = [
        _run([p.to(device) for p in parts], batch, backend) for parts in (per_head, per_channel)
    ]
    assert_close(outs[0], outs[1].cpu())


def check_extreme(
    device_and_backend: Backend, inputs: list[Tensor], rows: list[Row], chunk: int = 1
) -> None:
    """y and states in float32, where a state takes up so many tokens' corrections at once.

    Token by token a correction makes up for what the one before it lost in rounding. In a chunk
    none sees the others' rounding, so what they lose adds up, as a random walk does; a correction
    is up to twice as large as what it corrects.
    """
    device, backend = device_and_backend
    size = 1 if chunk == 1 else 2 * chunk**0.5
    batch = make_batch(rows, num_decodes=0, device=device)
    on_device = [part.to(device, copy=True) for part in inputs]
    y = _run(on_device, batch, backend)
    exact_y, exact_states = _recurrence(rows, *(part.double() for part in inputs))
    assert_close(y, exact_y, among=size * exact_y)
    states = on_device[-1].cpu()[[row.page for row in rows]]
    assert_close(states, exact_states, among=size * exact_states)


@BOTH
def test_tokens_that_forget_everything_leave_those_behind_them_exact(
    device_and_backend: Backend, sizes: Sizes
) -> None:
    """Sums of g that run far below zero must not cost later, slow tokens their digits."""
    rows = [Row(0, 96, page=0)]
    inputs = _inputs(rows, 96, torch.float32, sizes, seed=0)
    forgets = (torch.arange(96) % 32 < 8).view(96, *[1] * (inputs[3].dim() - 1))
    inputs[3] = torch.where(forgets, -480.0, -0.16).expand_as(inputs[3]).contiguous()
    check_extreme(device_and_backend, inputs, rows)


def test_channels_that_forget_stand_beside_channels_that_remember(
    device_and_backend: Backend,
) -> None:
    rows = [Row(9, 96, page=0)]
    inputs = _inputs(rows, 96, torch.float32, PER_CHANNEL, seed=0)
    inputs[3] = torch.where(torch.arange(16) % 2 == 0, -100.0, 0.0).expand(96, 4, 16).contiguous()
    check_extreme(device_and_backend, inputs, rows)


@BOTH
@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("same_key", [False, True], ids=["any keys", "one key"])
def test_nothing_is_forgotten_and_all_or_twice_or_none_is_corrected(
    device_and_backend: Backend, sizes: Sizes, beta: float, same_key: bool
) -> None:
    rows, inputs = nothing_is_forgotten(sizes, beta, same_key)
    check_extreme(device_and_backend, inputs, rows)


def nothing_is_forgotten(
    sizes: Sizes, beta: float, same_key: bool
) -> tuple[list[Row], list[Tensor]]:
    """A long row without decay, all of whose corrections are as strong."""
    rows = [Row(3, 130, page=2)]
    inputs = _inputs(rows, 130, torch.float32, sizes, seed=0)
    if same_key:
        inputs[1] = inputs[1][:1].expand_as(inputs[1]).contiguous()
    inputs[3] = torch.zeros_like(inputs[3])
    inputs[4] = torch.full_like(inputs[4], beta)
    return rows, inputs


@BOTH
def test_bug_09_a_chunk_goes_on_from_the_state_before_it(
    device_and_backend: Backend, sizes: Sizes
) -> None:
    device, backend = device_and_backend
    *inputs, _ = _inputs([], 70, torch.float32, sizes, seed=0)

    def run(cuts: Sequence[int]) -> tuple[Tensor, Tensor]:
        shape = (3, sizes.heads, sizes.key_dim, sizes.value_dim)
        state = torch.full(shape, torch.nan, device=device)
        ys: list[Tensor] = []
        for start, stop in zip([0, *cuts], [*cuts, 70], strict=True):
            row = Row(start, stop - start, page=1)
            batch = make_batch([row], num_decodes=row.queries == 1 and start > 0, device=device)
            parts = [part[start:stop].to(device) for part in inputs]
            ys.append(_run([*parts, state], batch, backend))
        return torch.cat(ys), state[1]

    whole = run([])
    for cuts in ([1], [69], [16], [17, 64], [3, 4, 5, 40], list(range(1, 70))):
        for part, expected in zip(run(cuts), whole, strict=True):
            assert_close(part, expected.cpu())
