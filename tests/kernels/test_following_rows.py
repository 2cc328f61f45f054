"""Rows that follow: a chunk cut into several rows of one batch, each with a page of its own.

What is expected is what the same kernel gives, and leaves, when each row has a step of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numba
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.causal_conv1d import causal_conv1d
from hybridrt.kernels.gated_delta_rule import gated_delta_rule
from hybridrt.kernels.linear_recurrence import linear_recurrence
from hybridrt.kernels.recent_inputs import recent_inputs
from hybridrt.kernels.selective_scan import selective_scan
from hybridrt.kernels.ssd import ssd
from tests.harness.batches import Row, make_batch, pages_of, uncut
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close

Backend = tuple[str, StateBackend]
Draw = Callable[..., Tensor]
DECODED = 1000  # tokens before each decode row's, and before no other's


@dataclass(frozen=True)
class Kernel:
    """`inputs` are made for a number of tokens, `run` takes some of them in place of all."""

    state: tuple[int, ...]
    inputs: Callable[[int, Draw], list[Tensor]]
    run: Callable[[list[Tensor], Tensor, ForwardBatch, StateBackend], Tensor]


def _conv_inputs(tokens: int, draw: Draw) -> list[Tensor]:
    return [draw(tokens, 16)]


# Without silu, which torch rounds unlike at the end of all tokens.
def _conv(
    inputs: list[Tensor], cache: Tensor, batch: ForwardBatch, backend: StateBackend
) -> Tensor:
    x = inputs[0].to(cache.dtype)  # a state is inputs as they are
    weight = torch.linspace(-1, 1, 64, device=cache.device, dtype=x.dtype).view(16, 4)
    return causal_conv1d(x, weight, None, cache, *pages_of(batch), batch, backend, None)


def _recent(inputs: list[Tensor], cache: Tensor, batch: ForwardBatch, _: StateBackend) -> Tensor:
    return recent_inputs(inputs[0].to(cache.dtype), cache, *pages_of(batch), batch)


def _scan_inputs(tokens: int, draw: Draw, channels: int = 70, state_size: int = 5) -> list[Tensor]:
    x, dt = draw(tokens, channels), draw(tokens, channels).sigmoid()
    return [x, dt, draw(tokens, state_size), draw(tokens, state_size)]


def _scan(
    inputs: list[Tensor], cache: Tensor, batch: ForwardBatch, backend: StateBackend
) -> Tensor:
    x, dt, B, C = inputs
    A = -torch.linspace(0.01, 3, cache[0].numel(), device=cache.device).view_as(cache[0])
    return selective_scan(x, dt, A, B, C, A[:, 0], cache, *pages_of(batch), batch, backend)


def _recurrence_inputs(tokens: int, draw: Draw) -> list[Tensor]:
    return [draw(tokens, 70), draw(tokens, 70).sigmoid()]


def _recurrence(
    inputs: list[Tensor], cache: Tensor, batch: ForwardBatch, backend: StateBackend
) -> Tensor:
    return linear_recurrence(*inputs, cache, *pages_of(batch), batch, backend)


def _ssd_inputs(tokens: int, draw: Draw, state_size: int = 16) -> list[Tensor]:
    groups = [draw(tokens, 2, state_size) for _ in range(2)]
    return [draw(tokens, 4, 16), draw(tokens, 4).sigmoid(), *groups]


def _ssd(inputs: list[Tensor], cache: Tensor, batch: ForwardBatch, backend: StateBackend) -> Tensor:
    x, dt, B, C = inputs
    A = -torch.linspace(0.01, 3, 4, device=cache.device)
    return ssd(x, dt, A, B, C, A, cache, *pages_of(batch), batch, 16, backend)


def _ssd_in_bfloat16(
    inputs: list[Tensor], cache: Tensor, batch: ForwardBatch, backend: StateBackend
) -> Tensor:
    x, dt, B, C = inputs
    return _ssd([x.bfloat16(), dt, B.bfloat16(), C.bfloat16()], cache, batch, backend)


def _delta_inputs(tokens: int, draw: Draw, *channels: int, values: int = 6) -> list[Tensor]:
    g, beta = -draw(tokens, 4, *channels).sigmoid(), draw(tokens, 4).sigmoid()
    q, k = (normalize(draw(tokens, 2, 8), dim=-1) for _ in range(2))
    return [q, k, draw(tokens, 4, values), g, beta]


def _delta(
    inputs: list[Tensor], cache: Tensor, batch: ForwardBatch, backend: StateBackend
) -> Tensor:
    q, k, v, g, beta = inputs
    return gated_delta_rule(q, k, v, g, beta, cache, *pages_of(batch), batch, backend)


DELTA = Kernel((4, 8, 6), _delta_inputs, _delta)
WIDE = Kernel((4, 8, 70), lambda tokens, draw: _delta_inputs(tokens, draw, values=70), _delta)
KERNELS = {
    "causal_conv1d": Kernel((3, 16), _conv_inputs, _conv),
    "recent_inputs": Kernel((3, 16), _conv_inputs, _recent),
    "selective_scan": Kernel((70, 5), _scan_inputs, _scan),
    "selective_scan, by vectors": Kernel(
        (80, 16), lambda tokens, draw: _scan_inputs(tokens, draw, 80, 16), _scan
    ),
    "linear_recurrence": Kernel((70,), _recurrence_inputs, _recurrence),
    "ssd": Kernel((4, 16, 16), _ssd_inputs, _ssd),
    "gated_delta_rule": DELTA,
    "gated_delta_rule, wide": WIDE,
    "KDA": replace(DELTA, inputs=lambda tokens, draw: _delta_inputs(tokens, draw, 8)),
}
# By AMX, how many tokens stand together depends on where a row begins.
CHUNKED = Kernel((4, 16, 64), lambda tokens, draw: _ssd_inputs(tokens, draw, 64), _ssd_in_bfloat16)


@dataclass(frozen=True)
class Chain:
    """Rows of one sequence: `lengths` new tokens each.

    It goes on from its own page, or starts from a checkpoint that stands in page 0 or 1 and
    stays there, or from nothing.
    """

    start: int | str | None
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Company:
    """A batch: decode rows, then the rows of each chain."""

    num_decodes: int
    chains: tuple[Chain, ...]

    def rows(self, seed: int) -> tuple[list[Row], int]:
        """Its rows on pages in random order behind two checkpoints, and how many there are."""
        num_pages = 2 + self.num_decodes + sum(len(chain.lengths) for chain in self.chains) + 2
        order = torch.randperm(num_pages - 2, generator=torch.Generator().manual_seed(seed)) + 2
        free = order.tolist()
        rows = [Row(DECODED, 1, page=free.pop()) for _ in range(self.num_decodes)]
        for chain in self.chains:
            own = free.pop()
            context = 0 if chain.start is None else 9
            before = chain.start if isinstance(chain.start, int) else own
            for i, queries in enumerate(chain.lengths):
                is_last = i + 1 == len(chain.lengths)
                page = own if is_last else free.pop()
                rows.append(Row(context, queries, (), page, 0, before, follows=i > 0))
                before, context = page, context + queries
        return rows, num_pages


LENGTHS = st.lists(st.sampled_from([1, 1, 2, 3]) | st.integers(1, 40), min_size=1, max_size=5)
CHAINS = st.builds(Chain, st.sampled_from([None, "own", 0, 1]), LENGTHS.map(tuple))
COMPANIES = st.builds(
    Company, st.integers(0, 3), st.lists(CHAINS, min_size=1, max_size=4).map(tuple)
)


def _poisoned(kernel: Kernel, rows: Sequence[Row], num_pages: int, dtype: torch.dtype) -> Tensor:
    """A pool of NaN with states where rows start from one; the cache is a part of its rows."""
    size = torch.Size(kernel.state).numel()
    pool = torch.full((num_pages, 16 + size + 8), torch.nan, dtype=dtype)
    draw = torch.Generator().manual_seed(1)
    written: set[int] = set()
    for row in rows:
        if row.context and row.starts_from not in written:
            pool[row.starts_from, 16 : 16 + size] = torch.randn(size, generator=draw).to(dtype)
        written.add(row.page)
    return pool


def _steps(
    kernel: Kernel, backend: Backend, inputs: list[Tensor], pool: Tensor, steps: list[list[Row]]
) -> tuple[Tensor, Tensor]:
    """All y, and the pool behind the last of some steps."""
    pool = pool.to(backend[0], copy=True)
    cache = pool[:, 16:-8].unflatten(1, kernel.state)
    ys: list[Tensor] = []
    at = 0
    for rows in steps:
        tokens = sum(row.queries for row in rows)
        parts = [part[at : at + tokens].to(backend[0]) for part in inputs]
        num_decodes = sum(row.context == DECODED for row in rows)
        batch = make_batch(rows, num_decodes=num_decodes, device=backend[0])
        ys.append(kernel.run(parts, cache, batch, backend[1]))
        at += tokens
    return torch.cat(ys).cpu(), pool.cpu()


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _check(kernel: Kernel, backend: Backend, company: Company, dtype: torch.dtype) -> None:
    rows, num_pages = company.rows(seed=len(company.chains))
    draw = torch.Generator().manual_seed(0)
    tokens = sum(row.queries for row in rows)
    inputs = kernel.inputs(tokens, lambda *shape: torch.randn(shape, generator=draw))
    pool = _poisoned(kernel, rows, num_pages, dtype)
    n = company.num_decodes
    y, after = _steps(kernel, backend, inputs, pool, [rows])

    alone = [[replace(row, follows=False)] for row in rows[n:]]
    separate_y, separate = _steps(kernel, backend, inputs, pool, [rows[:n]] * (n > 0) + alone)
    assert _same_bits(y, separate_y)
    assert _same_bits(after, separate)  # checkpoints and poison among it

    written = {row.page for row in rows}
    others = [page for page in range(num_pages) if page not in written]
    assert _same_bits(after[others], pool[others])
    if dtype == torch.float32:
        whole_y, whole = _steps(kernel, backend, inputs, pool, [uncut(rows)])
        last = [row.page for row in uncut(rows)]
        assert_close(y, whole_y)
        assert_close(after[last, 16:-8], whole[last, 16:-8])


TWO_FROM_ONE = Company(2, (Chain(0, (5, 1, 1)), Chain(0, (1,)), Chain("own", (1, 17))))
TOKEN_BY_TOKEN = Company(0, (Chain(None, (1,) * 20), Chain("own", (1,) * 20)))
OVER_CHUNKS = Company(1, (Chain("own", (16, 130, 7)), Chain(None, (64, 64)), Chain(1, (33,))))


@pytest.mark.parametrize("name", KERNELS)
@bounded(20)
@example(TWO_FROM_ONE)
@example(TOKEN_BY_TOKEN)
@example(OVER_CHUNKS)
@given(company=COMPANIES)
def test_rows_that_follow_are_steps_of_their_own_bit_for_bit(
    device_and_backend: Backend, dtype: torch.dtype, name: str, company: Company
) -> None:
    """Here `dtype` is the states': what is rounded where a step ends is rounded at a cut."""
    _check(KERNELS[name], device_and_backend, company, dtype)


@pytest.mark.parametrize("name", KERNELS)
def test_rows_that_follow_on_one_page_are_a_sequence_too(
    device_and_backend: Backend, name: str
) -> None:
    """As it is where a state at a cut isn't wanted."""
    kernel, draw = KERNELS[name], torch.Generator().manual_seed(0)
    inputs = kernel.inputs(12, lambda *shape: torch.randn(shape, generator=draw))
    rows = [Row(9, 5, page=1), Row(14, 4, page=1, follows=True), Row(18, 3, page=1, follows=True)]
    pool = _poisoned(kernel, rows, 3, torch.float32)
    y, after = _steps(kernel, device_and_backend, inputs, pool, [rows])
    alone = [[replace(row, follows=False)] for row in rows]
    separate_y, separate = _steps(kernel, device_and_backend, inputs, pool, alone)
    assert _same_bits(y, separate_y) and _same_bits(after, separate)


@pytest.mark.parametrize("company", [TWO_FROM_ONE, OVER_CHUNKS], ids=["short", "long"])
@pytest.mark.parametrize("name", [*KERNELS, "ssd in bfloat16"])
def test_the_bits_do_not_depend_on_the_threads_that_share_a_row(
    monkeypatch: pytest.MonkeyPatch, name: str, company: Company
) -> None:
    """Nor on how long it is beside others: more threads than there are heads leave some idle."""
    kernel = KERNELS.get(name, CHUNKED)
    rows, num_pages = company.rows(seed=0)
    draw = torch.Generator().manual_seed(0)
    tokens = sum(row.queries for row in rows)
    inputs = kernel.inputs(tokens, lambda *shape: torch.randn(shape, generator=draw))
    pool = _poisoned(kernel, rows, num_pages, torch.float32)
    found: list[tuple[Tensor, Tensor]] = []
    for threads in (1, 2, 3, 7):
        monkeypatch.setattr(numba, "get_num_threads", lambda n=threads: n)
        found.append(_steps(kernel, ("cpu", "numba"), inputs, pool, [rows]))
    for y, after in found[1:]:
        assert _same_bits(y, found[0][0]) and _same_bits(after, found[0][1])
