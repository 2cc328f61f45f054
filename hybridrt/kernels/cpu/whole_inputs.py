"""Inputs of products with weights of 8 and 4 bits: whole numbers of 16 bits, for numba.

A group of a vector's inputs is a power of two times whole numbers, of which the largest has 15
bits. bfloat16 has 8, so that inputs down to 1/128 of the largest are as they were, and those below
are off by 2^-15 of it. Sums of their products with whole weights are exact, in whatever order: a
vector gives the same bits beside others, on any processor.

A vector is a row of `row_bytes`: its numbers; then for AMX, beside weights of 8 bits, the upper and
the lower bytes of all of them, and beside those of 4, for each group, 256 times the upper ones and
the lower ones, as bfloat16; then for each group that power of two, and what its sum begins with.
"""

from typing import no_type_check

import numpy as np
from numba.extending import register_jitable

from hybridrt.kernels.cpu.bfloat16 import (
    halves,
    narrow,
    octets,
    short_integers,
    shorts,
    signed_octets,
    singles,
    widen,
)
from hybridrt.kernels.cpu.jit import inner_fast

TOO_MUCH = 8
"""What a weight of 4 bits is more than it should be, as it is stored."""

_LINE = 64
_DIGITS = 14  # of the largest number, behind the first
_LEAST = 127 - 112  # exponent, as bfloat16 has it, whose power of two still has a reciprocal


@register_jitable
@no_type_check
def row_bytes(inputs, groups):
    """Of a vector."""
    return (6 * inputs + 8 * groups + _LINE - 1) // _LINE * _LINE


@register_jitable
@no_type_check
def of_groups(inputs):
    """Bytes in front of what a row has of its groups."""
    return 6 * inputs


@inner_fast
@no_type_check
def make_whole(x, row, inputs, group, bits, for_tiles):  # pragma: no cover  (compiled)
    """Writes a vector's row. All but `inputs`, `group`, `bits` and `for_tiles` are addresses."""
    groups, given = inputs // group, halves(x, inputs)
    numbers = shorts(row, inputs)
    upper = signed_octets(row + 2 * inputs, inputs)
    lower = octets(row + 3 * inputs, inputs)
    both = halves(row + 2 * inputs, 2 * inputs)
    powers = singles(row + of_groups(inputs), 2 * groups)
    begins = short_integers(row + of_groups(inputs), 2 * groups)
    for g in range(groups):
        own, largest = g * group, np.uint16(0)
        for i in range(group):
            largest = max(largest, np.uint16(given[own + i] & np.uint16(0x7FFF)))
        exponent = max(np.int32(largest >> 7), np.int32(_LEAST))
        begins[2 * g] = (exponent - _DIGITS) << 23
        begins[2 * g + 1] = (127 + _DIGITS + 127 - exponent) << 23
        scale, total = powers[2 * g + 1], np.int32(0)
        for i in range(group):
            value = widen(given[own + i]) * scale
            number = np.int32(value + (np.float32(0.5) if value >= 0 else np.float32(-0.5)))
            numbers[own + i] = number
            total += number
        if for_tiles and bits == 4:
            for i in range(group):
                both[2 * own + i] = narrow(np.float32(numbers[own + i] & ~255))
                both[2 * own + group + i] = narrow(np.float32(numbers[own + i] & 255))
        elif for_tiles:
            for i in range(group):
                upper[own + i] = numbers[own + i] >> 8
                lower[own + i] = numbers[own + i] & 255
        begins[2 * g + 1] = -TOO_MUCH * total if bits == 4 else 0
        if largest >= 0x7F80:  # not a number of which there is a part
            powers[2 * g] = np.nan
