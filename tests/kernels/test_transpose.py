"""`turn`: a block in registers is turned around bit by bit, whatever stands in it."""

from typing import no_type_check

import numpy as np
import pytest

from hybridrt.kernels.cpu.jit import kernel
from hybridrt.kernels.cpu.transpose import turn
from hybridrt.kernels.cpu.vectors import LANES, pointer


@kernel
@no_type_check
def turn_one(given, place, step, to, to_place, to_step):  # pragma: no cover  (compiled)
    turn(pointer(given), place, step, pointer(to), to_place, to_step)


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.float32])
@pytest.mark.parametrize(("step", "to_step"), [(LANES, LANES), (19, 31)])
def test_rows_become_columns(dtype, step, to_step):
    generator = np.random.default_rng(0)
    given = np.frombuffer(generator.bytes(40 * LANES * np.dtype(dtype).itemsize), dtype)
    to = np.zeros(40 * LANES, dtype)
    turn_one(given, 3, step, to, 5, to_step)
    expected = np.zeros_like(to)
    for row in range(LANES):
        for lane in range(LANES):
            expected[5 + lane * to_step + row] = given[3 + row * step + lane]
    assert to.tobytes() == expected.tobytes()
