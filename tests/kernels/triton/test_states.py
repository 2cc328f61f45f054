"""Convolutions, scans and delta rules in Triton against the definitions of their contracts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.harness.batches import Ragged, Row, make_batch, pages_of, ragged
from tests.harness.properties import bounded
from tests.kernels import test_causal_conv1d as conv
from tests.kernels import test_following_rows as following
from tests.kernels import test_gated_delta_rule as delta
from tests.kernels import test_selective_scan as scan
from tests.kernels import test_ssd as dual
from tests.kernels.test_following_rows import Chain, Company
from tests.kernels.triton.conftest import IN_INTERPRETER, ON_GPU, ONE_DTYPE_HERE

Place = tuple[str, torch.dtype]
MIXED = Ragged(((3, 1), (1, 1), (0, 33), (5, 2), (0, 1)), 2)
FEW = Ragged(((3, 1), (0, 9), (5, 2), (0, 1)), 1)
LENGTHS = (Ragged(((0, 1),), 0), Ragged(((1, 1),), 1), Ragged(((9, 70),), 0))


@pytest.fixture(autouse=True)
def _put_in(put_in: Any, place: Place) -> None:
    from hybridrt.kernels.triton.causal_conv1d import causal_conv1d
    from hybridrt.kernels.triton.gated_delta_rule import gated_delta_rule
    from hybridrt.kernels.triton.selective_scan import selective_scan
    from hybridrt.kernels.triton.ssd import ssd

    for module, kernel in (
        (conv, causal_conv1d),
        (scan, selective_scan),
        (dual, ssd),
        (delta, gated_delta_rule),
    ):
        put_in(module, kernel.__name__, kernel)
        put_in(following, kernel.__name__, kernel)


@ONE_DTYPE_HERE
@pytest.mark.parametrize("activated", [True, False])
@pytest.mark.parametrize(("channels", "width"), [(16, 4), (5, 19), *conv.SIZES])
def test_convolution(place: Place, channels: int, width: int, activated: bool) -> None:
    how = (channels, width, not activated, 0, activated)
    conv._check(FEW, place[1], place[0], "triton", *how)


@pytest.mark.parametrize("lengths", [*LENGTHS, MIXED], ids=str)
def test_convolution_of_any_lengths(place: Place, lengths: Ragged) -> None:
    conv._check(lengths, place[1], place[0], "triton")


@IN_INTERPRETER
def test_inputs_may_be_a_part_of_wider_rows(place: Place) -> None:
    conv.test_inputs_may_be_a_part_of_wider_rows("triton")


@pytest.mark.parametrize("lengths", [*LENGTHS, MIXED], ids=str)
def test_selective_scan(place: Place, lengths: Ragged) -> None:
    scan._check(lengths, place[1], (place[0], "triton"))


@pytest.mark.parametrize("sizes", [(1, 1), (7, 5), (9, 33)])
def test_selective_scan_of_odd_sizes(place: Place, sizes: tuple[int, int]) -> None:
    scan._check(FEW, place[1], (place[0], "triton"), sizes)


@pytest.mark.parametrize("lengths", [*LENGTHS, MIXED], ids=str)
def test_ssd(place: Place, lengths: Ragged) -> None:
    dual._check(lengths, place[1], (place[0], "triton"))


@ONE_DTYPE_HERE
@pytest.mark.parametrize("sizes", dual.ODD, ids=str)
def test_ssd_of_odd_sizes(place: Place, sizes: dual.Sizes) -> None:
    dual._check(FEW, place[1], (place[0], "triton"), sizes)


AT_ENDS = Ragged(
    tuple((i % 2 * 3, length) for i, length in enumerate((32, 63, 64, 65, 127, 128, 129, 1, 31))), 0
)
MANY = Ragged((*((2, 1),) * 2, *((i % 3, 1 + i % 2) for i in range(70)), (0, 66)), 2)


@ONE_DTYPE_HERE
@pytest.mark.parametrize(
    ("lengths", "chunk_size"),
    [(AT_ENDS, 64), (AT_ENDS, 128), (MANY, 64)],
    ids=["at ends", "at ends of blocks", "many rows"],
)
def test_ssd_of_rows_that_end_about_where_chunks_do(
    place: Place, lengths: Ragged, chunk_size: int
) -> None:
    sizes = dual.Sizes(1, 1, head_dim=16, state_size=16, chunk_size=chunk_size)
    dual._check(lengths, place[1], (place[0], "triton"), sizes)


@ONE_DTYPE_HERE
def test_ssd_of_many_channels_and_states(place: Place) -> None:
    sizes = dual.Sizes(2, 1, head_dim=72, state_size=136, chunk_size=256)
    dual._check(Ragged(((0, 300), (2, 5)), 0), place[1], (place[0], "triton"), sizes)


ONE = dual.Sizes(heads=1, groups=1)
OWN = dual._inputs([], 150, torch.float32, ONE, 7)


def _ssd_of_a_row(place: Place, before: int, behind: int, wide: bool) -> tuple[Tensor, Tensor]:
    """y and last state of a row of 150 tokens, the same in any company; in wider rows or not."""
    lengths = [*[(0, 1 + i % 2) for i in range(before)], (3, 150), *((2, 40),) * behind]
    start = sum(queries for _, queries in lengths[:before])
    rows = [Row(context, queries, page=i) for i, (context, queries) in enumerate(lengths)]
    tokens = sum(row.queries for row in rows)
    inputs = dual._inputs(rows, tokens, place[1], ONE, seed=0)
    for i in (0, 1, 3, 4):  # those of tokens
        inputs[i][start : start + 150] = OWN[i]
    x, dt, _, B, C, _, state = (part.to(place[0]) for part in inputs)
    A, D = OWN[2].to(place[0]), OWN[5].to(place[0])
    state[before] = torch.linspace(-1, 1, state[0].numel()).view(state[0].shape)
    if wide:
        x, B, C = torch.cat([p.flatten(1) for p in (x, B, C)], 1).split(16, 1)
        x, B, C = (part[:, None] for part in (x, B, C))
        state = state.transpose(2, 3).contiguous().transpose(2, 3)
    batch = make_batch(rows, num_decodes=0, device=place[0])
    y = dual._scan([x, dt, A, B, C, D, state], batch, 64, "triton")
    return y[start : start + 150], state[before]


@ONE_DTYPE_HERE
@pytest.mark.parametrize(
    ("before", "behind", "wide"), [(0, 0, True), (2, 1, False), (3, 0, True), (66, 0, False)]
)
def test_ssd_gives_a_row_the_same_bits_in_any_company_and_with_any_strides(
    place: Place, before: int, behind: int, wide: bool
) -> None:
    alone, among = (_ssd_of_a_row(place, *how) for how in ((0, 0, False), (before, behind, wide)))
    assert all(torch.equal(*pair) for pair in zip(alone, among, strict=True))


def test_ssd_of_blocks_that_forget_everything(place: Place) -> None:
    """In the midst of blocks, over whole ones, and of none; some tokens leave no trace."""
    rows = [Row(0, 200, page=0)]
    inputs = dual._inputs(rows, 200, torch.float32, dual.PLAIN, seed=0)
    t = torch.arange(200)[:, None]
    forgets = (t % 40 < 3) | ((t >= 64) & (t < 128))
    inputs[1] = torch.where(forgets, 30.0, torch.where(t % 7 == 0, 0.0, 0.01)).expand(200, 4)
    inputs[0] = torch.where(forgets[..., None], 1e-3, 1.0) * inputs[0]
    inputs[2] = torch.full((4,), -16.0)
    batch = make_batch(rows, num_decodes=0, device=place[0])
    on_device = [part.to(place[0], copy=True) for part in inputs]
    y = dual._scan(on_device, batch, 256, "triton")
    exact_y, exact_states = dual._recurrence(rows, *(part.double() for part in inputs))
    dual.assert_close(y, exact_y)
    dual.assert_close(on_device[-1][:1], exact_states)


@ONE_DTYPE_HERE
@pytest.mark.parametrize("sizes", [delta.PLAIN, delta.PER_CHANNEL, *delta.ODD], ids=str)
def test_delta_rule(place: Place, sizes: delta.Sizes) -> None:
    if place == ("cpu", torch.float16) and sizes.heads > 1:
        sizes = replace(sizes, heads=sizes.heads // sizes.key_heads, key_heads=1)
    delta._check(FEW, place[1], (place[0], "triton"), sizes)


@ONE_DTYPE_HERE
def test_delta_rule_in_memory_full_of_infinities(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one kernel leaves out no other counts with: not even times zero would it be zero."""
    empty = torch.empty

    def infinite(*args: Any, **kwargs: Any) -> Tensor:
        made = empty(*args, **kwargs)
        return made.fill_(torch.inf) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", infinite)
    delta._check(FEW, place[1], (place[0], "triton"), delta.PER_CHANNEL)


@pytest.mark.parametrize("lengths", LENGTHS[:2], ids=str)
def test_delta_rule_of_a_token(place: Place, lengths: Ragged) -> None:
    delta._check(lengths, torch.float32, (place[0], "triton"))


@ONE_DTYPE_HERE
@pytest.mark.parametrize(
    "sizes",
    [
        delta.Sizes(heads=2, key_heads=1, key_dim=24, value_dim=7),
        delta.Sizes(heads=2, key_heads=1, key_dim=37, value_dim=35, decay_per_channel=True),
    ],
    ids=["per head", "per channel"],
)
def test_delta_rule_of_a_row_longer_than_a_chunk(place: Place, sizes: delta.Sizes) -> None:
    delta._check(LENGTHS[2], place[1], (place[0], "triton"), sizes)


@ONE_DTYPE_HERE
@pytest.mark.parametrize("per_channel", [False, True], ids=["per head", "per channel"])
def test_delta_rule_of_rows_of_about_a_chunk(place: Place, per_channel: bool) -> None:
    """Slots of chunks lie close together here. Channels are more than one product takes."""
    sizes = delta.Sizes(1, 1, key_dim=72, value_dim=130, decay_per_channel=per_channel)
    lengths = Ragged(((2, 1), (0, 64), (3, 65), (0, 1), (0, 63)), 1)
    delta._check(lengths, place[1], (place[0], "triton"), sizes)


@pytest.mark.parametrize("per_channel", [False, True], ids=["per head", "per channel"])
def test_delta_rule_of_larger_numbers_leaves_the_same_bits(place: Place, per_channel: bool) -> None:
    """Products may be of 16 bits, of another range than states have."""
    device, dtype = place
    rows = [Row(3, 70, page=0)]
    sizes = delta.Sizes(1, 1, key_dim=8, value_dim=4, decay_per_channel=per_channel)
    inputs = delta._inputs(rows, 70, dtype, sizes, seed=0)
    batch = make_batch(rows, num_decodes=0, device=device)
    states: list[Tensor] = []
    for scale in (1.0, 2.0**8 if dtype == torch.float16 else 2.0**60):
        scaled = [*inputs[:2], inputs[2] * scale, *inputs[3:5], inputs[5] * scale]
        on_device = [part.to(device, copy=True) for part in scaled]
        delta._run(on_device, batch, "triton")
        states.append(on_device[-1][0] / scale)
    assert torch.equal(*states)


@ONE_DTYPE_HERE
@bounded(4)
@given(lengths=ragged(longest=20, most_rows=2), width=st.integers(1, 7), seed=st.integers(0, 2**16))
def test_ragged_batches(place: Place, lengths: Ragged, width: int, seed: int) -> None:
    how, where = place[1], (place[0], "triton")
    conv._check(lengths, how, *where, width=width, seed=seed)
    scan._check(lengths, how, where, seed=seed)
    dual._check(lengths, how, where, seed=seed)
    delta._check(lengths, torch.float32, (place[0], "triton"), TINY, seed)


TINY = delta.Sizes(heads=1, key_heads=1, key_dim=8, value_dim=4)


DECAYS = pytest.mark.parametrize(
    "sizes", [TINY, replace(TINY, decay_per_channel=True)], ids=["per head", "per channel"]
)


@DECAYS
def test_tokens_that_forget_everything_leave_those_behind_them_exact(
    place: Place, sizes: delta.Sizes
) -> None:
    where: delta.Backend = (place[0], "triton")
    delta.test_tokens_that_forget_everything_leave_those_behind_them_exact(where, sizes)
    dual.test_tokens_that_forget_everything_leave_those_behind_them_exact(where)


def test_channels_that_forget_stand_beside_channels_that_remember(place: Place) -> None:
    delta.test_channels_that_forget_stand_beside_channels_that_remember((place[0], "triton"))


@DECAYS
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_nothing_is_forgotten_and_twice_or_none_is_corrected(
    place: Place, sizes: delta.Sizes, beta: float
) -> None:
    from hybridrt.kernels.triton.gated_delta_rule import CHUNK

    rows, inputs = delta.nothing_is_forgotten(sizes, beta, same_key=True)
    delta.check_extreme((place[0], "triton"), inputs, rows, CHUNK if beta else 1)


COMPANY = Company(2, (Chain(0, (3, 1, 1)), Chain(0, (1,)), Chain("own", (1, 5)), Chain(None, (2,))))


@ONE_DTYPE_HERE
@pytest.mark.parametrize(
    "name", [k for k in following.KERNELS if k not in ("recent_inputs", "linear_recurrence")]
)
def test_rows_that_follow_are_steps_of_their_own_bit_for_bit(place: Place, name: str) -> None:
    following._check(following.KERNELS[name], (place[0], "triton"), COMPANY, place[1])


@ONE_DTYPE_HERE
@pytest.mark.parametrize("name", ["ssd", "gated_delta_rule", "KDA"])
def test_a_row_longer_than_a_chunk_and_one_that_follows(place: Place, name: str) -> None:
    company = Company(0, (Chain("own", (70, 33)),))
    following._check(following.KERNELS[name], (place[0], "triton"), company, place[1])


@ONE_DTYPE_HERE
def test_ssd_of_rows_that_follow_at_ends_of_chunks(place: Place) -> None:
    company = Company(2, (Chain("own", (32, 64, 1, 65)), Chain(None, (63, 2)), Chain(0, (128,))))
    following._check(following.KERNELS["ssd"], (place[0], "triton"), company, place[1])


def _runs(device: str) -> dict[str, Callable[[Tensor], Tensor]]:
    """Each kernel on two decode rows, the second of which has no page."""
    batch = make_batch([Row(3, 1, page=1), Row(4, 1, page=0)], num_decodes=2, device=device)
    pages = pages_of(batch)
    for part in pages:
        part[1] = -1
    where = (*pages, batch)
    draw = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.rand(shape, generator=draw).to(device)

    x, A, by_channel, taps = drawn(2, 4, 8), -drawn(4), -drawn(8, 6), drawn(8, 4)
    vectors = drawn(2, 2, 6)
    b, c = vectors.unbind(1)
    return {
        "conv": lambda s: conv.causal_conv1d(x[:, 0], taps, None, s, *where),
        "scan": lambda s: scan.selective_scan(
            x[:, 0], x[:, 1], by_channel, b, c, x[0, 0], s, *where
        ),
        "ssd": lambda s: dual.ssd(x, x[..., 0], A, vectors, vectors, A, s, *where, 16),
        "delta": lambda s: delta.gated_delta_rule(
            vectors, vectors, x, -x[..., 0], x[..., 1], s, *where
        ),
    }


SHAPES = {"conv": (3, 8), "scan": (8, 6), "ssd": (4, 8, 6), "delta": (4, 6, 8)}


@pytest.mark.parametrize("name", SHAPES)
def test_a_decode_row_without_a_page_writes_none(place: Place, name: str) -> None:
    """As a captured graph has rows that are padding."""
    state = torch.full((3, *SHAPES[name]), torch.nan, device=place[0])
    state[1] = 1
    out = _runs(place[0])[name](state)
    assert out[0].isfinite().all() and state[1].isfinite().all()
    assert not state[1].eq(1).all()
    assert state[[0, 2]].isnan().all()


@ON_GPU
@pytest.mark.parametrize("name", SHAPES)
def test_a_decode_step_can_be_captured_in_a_graph(place: Place, name: str) -> None:
    run = _runs(place[0])[name]
    states = [torch.ones(3, *SHAPES[name], device=place[0]) for _ in range(2)]
    expected = run(states[0])  # compiles, which no capture may
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(states[1])
    graph.replay()
    assert torch.equal(out, expected) and torch.equal(*states)
