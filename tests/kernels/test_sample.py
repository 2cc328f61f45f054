"""The draw of a token, against the definition in whole numbers."""

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrt.kernels import sample as contract
from hybridrt.kernels.cpu import sample as on_cpu
from hybridrt.kernels.reference import sample as in_torch
from hybridrt.kernels.sample import sample
from tests.harness.properties import bounded

BACKENDS = {"reference": in_torch.sample, "numba": on_cpu.sample}
LAST = 1 - 2.0**-53  # the largest uniform number


def weights(logits: list[float], temperature: float, min_p: float) -> list[int]:
    most, least = max(logits), math.log(min_p) if min_p else -math.inf
    below = [(logit - most) / temperature for logit in logits]
    return [math.floor(2**40 * math.exp(x)) if x >= least else 0 for x in below]


def definition(logits: Tensor, temperature: float, min_p: float, uniform: float) -> int:
    values = logits.double().tolist()
    if temperature == 0:
        return values.index(max(values))
    sums = list(accumulate(weights(values, temperature, min_p)))
    target = min(math.floor(uniform * float(sums[-1])), sums[-1] - 1)
    return next(token for token, total in enumerate(sums) if total > target)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@bounded(120)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([0.0, 5e-324, 1e-3, 0.4, 1.0, 2.5, 1e300]),
            st.sampled_from([0.0, 0.01, 0.4, 1.0]),
            st.floats(0, LAST),
        ),
        min_size=1,
        max_size=4,
    ),
    vocab=st.sampled_from([1, 2, 37, 511, 512, 513, 1100]),
    spread=st.sampled_from([0.0, 1.0, 30.0]),
    backend=st.sampled_from(sorted(BACKENDS)),
    seed=st.integers(0, 2**16),
)
def test_draws_the_token_of_the_definition(
    rows: list[tuple[float, float, float]], vocab: int, spread: float, backend: str, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(vocab, len(rows), generator=draw).T
    temperature, min_p, uniform = (numbers(*column) for column in zip(*rows, strict=True))
    tokens = BACKENDS[backend](logits, temperature, min_p.log(), uniform)
    assert tokens.tolist() == [definition(logits[i], *row) for i, row in enumerate(rows)]
    alone = [sample(logits[i : i + 1], *map(numbers, row)).item() for i, row in enumerate(rows)]
    assert tokens.tolist() == alone


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_ends_of_the_interval_draw_the_first_and_the_last_possible(backend: str) -> None:
    logits = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    logits[:, :3] = logits[:, 700:] = -math.inf
    ones, most = numbers(1, 1), numbers(0, 0).log()
    assert BACKENDS[backend](logits, ones, most, numbers(0, LAST)).tolist() == [3, 699]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_large_vocabulary_adds_up(backend: str) -> None:
    """As many of the largest weight as there may be tokens; each has its share."""
    count = 2**18
    places = torch.tensor([0, 1, 77_777, count - 1])
    uniform = (places.double() + 0.5) / count
    tokens = BACKENDS[backend](
        torch.zeros(4, count), torch.ones(4).double(), numbers(0, 0, 0, 0).log(), uniform
    )
    assert tokens.equal(places)


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_are_right_to_the_last_places(backend: str) -> None:
    """Of two tokens the second begins where the first one's weight says, down to weights of 3."""
    below = 18 * torch.rand(5_000, generator=torch.Generator().manual_seed(0))
    logits = torch.stack([-below, torch.zeros(5_000)], dim=1)
    first = torch.tensor([weights(pair, 0.7, 0.0)[0] for pair in logits.tolist()]).double()
    alike = torch.full((5_000,), 0.7, dtype=torch.float64), torch.zeros(5_000).double().log()
    for places, token in ((first - 3, 0), (first + 2, 1)):
        uniform = (places + 0.5).clamp(min=0) / (first + 2**40)
        assert (BACKENDS[backend](logits, *alike, uniform) == token).all()


def test_an_empty_batch_has_no_tokens() -> None:
    none = numbers()
    for backend in BACKENDS.values():
        assert backend(torch.empty(0, 7), none, none, none).shape == (0,)
    assert contract.sample(torch.empty(0, 7), none, none, none).dtype == torch.int64
