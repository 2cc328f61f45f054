"""What is rounded to bfloat16 as it is stored is what torch rounds."""

from typing import no_type_check

import numba
import torch

from hybridrt.kernels.cpu.bfloat16 import halves, singles
from hybridrt.kernels.cpu.vectors import (
    LANES,
    MULTIPLIES_PAIRS,
    load,
    pointer,
    store,
)

_TIES = [1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 1 + 2.0**-8 + 2.0**-20, 1 + 2.0**-8 - 2.0**-20]
_ENDS = [0.0, -0.0, 2.0**-126, 3.4e38, -3.4e38, torch.inf, -torch.inf, torch.nan]


@numba.njit
@no_type_check
def _round(numbers, to, count):  # pragma: no cover  (compiled)
    for place in range(0, count, LANES):
        store(load(pointer(singles(numbers, count)), place), pointer(halves(to, count)), place)


def test_all_lanes_are_rounded_to_the_nearest_of_two_to_the_even_one() -> None:
    torch.manual_seed(0)
    special = torch.tensor(_TIES + _ENDS)
    numbers = torch.cat([special, torch.randn(8 * LANES - len(special)).exp2()])
    found = torch.full((len(numbers),), 7.0, dtype=torch.bfloat16)
    _round(numbers.data_ptr(), found.data_ptr(), len(numbers))
    (code,) = _round.inspect_asm().values()
    assert ("vcvtneps2bf16" in code) == MULTIPLIES_PAIRS
    expected = numbers.bfloat16()
    assert torch.equal(found.isnan(), expected.isnan())
    kept = ~expected.isnan()
    assert torch.equal(found[kept].view(torch.int16), expected[kept].view(torch.int16))
