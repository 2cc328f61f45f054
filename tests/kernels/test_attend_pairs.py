"""The order in which attention asks for what it reads next."""

from typing import no_type_check

import numba
import numpy as np
import pytest

from hybridrt.kernels.cpu.attend_jobs import ASKED, GRAIN
from hybridrt.kernels.cpu.attend_pairs import STEP, _take_turns


@numba.njit
@no_type_check
def _turns(places, begin, kv_heads, apart):  # pragma: no cover  (compiled)
    _take_turns(places, begin, kv_heads, apart)


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_each_token_of_a_step_is_asked_for_and_neighbours_are_of_unlike_runs(kv_heads: int) -> None:
    begin, apart = 64, 10**6
    places = np.full(ASKED + STEP * kv_heads, -1)
    tokens = np.random.default_rng(0).permutation(STEP) * 1000
    places[begin : begin + STEP] = tokens
    _turns(places, begin, kv_heads, apart)
    asked = places[ASKED:]
    runs = [(head, run) for run in range(STEP // GRAIN) for head in range(kv_heads)]
    numbers = {
        token + head * apart: (head, t // GRAIN)
        for t, token in enumerate(tokens)
        for head in range(kv_heads)
    }
    assert sorted(asked) == sorted(numbers)
    for first in range(0, len(asked), len(runs)):
        assert [numbers[place] for place in asked[first : first + len(runs)]] == runs
