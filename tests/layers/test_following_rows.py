"""A chunk cut into several rows of one batch is the chunk, and leaves the state at each cut."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from tests.harness.bench import Bench, Setting, alone, random_tokens
from tests.harness.layer_rows import LAYERS, RECURRENT, LayerRow
from tests.harness.properties import bounded
from tests.harness.tolerance import assert_close

CHUNK, DECODE, OTHER = (random_tokens(count, seed=count) for count in (45, 7, 11))
"""The sequence that is cut, one that decodes beside it, and one that begins."""

ROWS = [
    pytest.param(row, backend, id=f"{row.reason}-{backend}")
    for backend in ("reference", "numba")
    for row in (LAYERS if backend == "reference" else RECURRENT)
]
Run = tuple[dict[str, Tensor], list[Tensor]]
"""What each sequence gets, and what the pages of "chunk" hold behind each of its parts."""


def _begun(row: LayerRow, backend: str, begun: int) -> Bench:
    bench = Bench(row, Setting(8, 4, state_backend=backend, page_seed=begun), num_pages=120)
    bench.step([("decode", DECODE[:6])] + [("chunk", CHUNK[:begun])] * (begun > 0))
    return bench


def _in_one_batch(bench: Bench, begun: int, cuts: Sequence[int]) -> Run:
    work = [("decode", DECODE[6:]), ("chunk", CHUNK[begun:]), ("other", OTHER)]
    outs = bench.step(work, {"chunk": cuts})
    states = [bench.checkpoint("chunk", begun + cut) for cut in cuts if bench.holds_states]
    return outs, [*states, bench.contents("chunk")]


def _in_steps(bench: Bench, begun: int, cuts: Sequence[int]) -> Run:
    """A step for each part. Sequences made up for the purpose have the tokens of all others.

    So every product of matrices is as large as in one batch, and rounds alike.
    """
    x, outs, parts, states = CHUNK[begun:], dict[str, Tensor](), list[Tensor](), list[Tensor]()
    for start, stop in pairwise([0, *cuts, len(x)]):
        is_first = start == 0
        work = [
            ("decode" if is_first else "1", DECODE[6:]),
            ("2", x[:start]),
            ("chunk", x[start:stop]),
            ("3", x[stop:]),
            ("other" if is_first else "4", OTHER),
        ]
        work = [(name, tokens) for name, tokens in work if len(tokens)]
        of_step = bench.step(work, {"chunk": ()})
        outs = of_step if is_first else outs
        parts.append(of_step["chunk"])
        states.append(bench.contents("chunk"))
        for name in {"1", "2", "3", "4"} & of_step.keys():
            bench.drop(name)
    outs["chunk"] = torch.cat(parts)
    return outs, states if bench.holds_states else states[-1:]


def _check(row: LayerRow, backend: str, begun: int, cuts: Sequence[int]) -> None:
    cuts = [cut for cut in cuts if cut < len(CHUNK) - begun]
    outs, states = _in_one_batch(_begun(row, backend, begun), begun, cuts)
    step_outs, step_states = _in_steps(_begun(row, backend, begun), begun, cuts)
    for name in ("decode", "chunk", "other"):
        assert torch.equal(outs[name], step_outs[name])
    for state, expected in zip(states, step_states, strict=True):
        assert torch.equal(state, expected)
    whole = alone(row, CHUNK)
    assert_close(outs["chunk"], whole[begun:], among=whole)


@pytest.mark.parametrize(("row", "backend"), ROWS)
@bounded(4)
@example(0, [1, 2, 3, 10, 44])
@example(5, [8, 16, 24, 39])
@example(1, range(1, 44))
@given(
    begun=st.sampled_from([0, 1, 7, 8]),
    cuts=st.lists(st.integers(1, 44), min_size=1, max_size=6, unique=True).map(sorted),
)
def test_a_chunk_cut_into_rows_gives_and_leaves_the_bits_of_steps(
    row: LayerRow, backend: str, begun: int, cuts: Sequence[int]
) -> None:
    """The bench looks after the rest: a page that no row has for its own is as it was."""
    _check(row, backend, begun, cuts)


@pytest.mark.parametrize("backend", ["reference", "numba"])
@pytest.mark.parametrize("row", RECURRENT, ids=lambda row: row.reason)
def test_others_start_from_a_checkpoint_and_leave_it_as_it_was(row: LayerRow, backend: str) -> None:
    bench = _begun(row, backend, begun=3)
    bench.step([("chunk", CHUNK[3:])], {"chunk": [4, 20]})
    left = {position: bench.checkpoint("chunk", position) for position in (7, 23)}
    # One token, several, some of them cut again; two start from one page.
    starts = {"p": (23, 24, []), "q": (23, 45, [1, 7]), "r": (7, 20, []), "s": (7, 8, [])}
    for name, (position, _, _) in starts.items():
        bench.start_from(name, "chunk", position)
    work = [(name, CHUNK[start:stop]) for name, (start, stop, _) in starts.items()]
    outs = bench.step([("decode", DECODE[6:]), *work], {n: c for n, (_, _, c) in starts.items()})
    whole = alone(row, CHUNK)
    for name, (start, stop, _) in starts.items():
        assert_close(outs[name], whole[start:stop], among=whole)
    for position, state in left.items():
        assert torch.equal(bench.checkpoint("chunk", position), state)
    # They go on by themselves, and so does a copy of a copy.
    bench.start_from("t", "q", 30)
    rest = {"p": 24, "r": 20, "s": 8, "t": 30}
    outs = bench.step([(name, CHUNK[start:]) for name, start in rest.items()])
    for name, start in rest.items():
        assert_close(outs[name], whole[start:], among=whole)
