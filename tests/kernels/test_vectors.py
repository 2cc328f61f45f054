"""What is rounded to bfloat16 is what torch rounds; which lines of memory are asked for."""

from typing import no_type_check

import numba
import torch
from numba.core import types
from numba.extending import intrinsic

from hybridrt.kernels.cpu.bfloat16 import halves, singles
from hybridrt.kernels.cpu.vectors import (
    LANES,
    LINE,
    MULTIPLIES_PAIRS,
    PAGE,
    PAGES,
    line_of_pages,
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


@intrinsic
@no_type_check
def _line_of_pages(typing_context, address):
    def code(context, builder, signature, args):
        return line_of_pages(builder, *args)

    return types.int64(types.int64), code


@numba.njit
@no_type_check
def _line(address):  # pragma: no cover  (compiled)
    return _line_of_pages(address)


def test_every_line_of_some_pages_is_asked_for_and_neighbours_are_of_unlike_pages() -> None:
    begin = 3 * PAGES * PAGE
    given = range(begin, begin + PAGES * PAGE, LINE)
    found = [_line(address) for address in given]
    assert sorted(found) == list(given)
    for first in range(0, len(found), PAGES):
        lines = found[first : first + PAGES]
        assert len({line // PAGE for line in lines}) == PAGES
        assert len({line % PAGE for line in lines}) == 1
    assert _line(begin + LINE - 1) == begin
