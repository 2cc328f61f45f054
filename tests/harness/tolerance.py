"""When a result counts as right.

A definition is a function that is written in plain loops and computes in the dtype
of its arguments. In float64 it gives what is true of the inputs, in the kernel's own
dtype it gives an honest error to be measured against.
"""

from collections.abc import Callable

import torch
from torch import Tensor

FLOAT32 = 1e-5
"""Of a float32 result: error relative to the largest value of the right one."""

BFLOAT16_ROUNDING = 2.0**-8
"""Of values rounded once to bfloat16: bounds their relative error, so its RMS too."""


def rms(x: Tensor) -> float:
    """The root mean square."""
    return x.double().square().mean().sqrt().item()


def assert_right(actual: Tensor, definition: Callable[..., Tensor], *inputs: Tensor) -> None:
    """`actual`, computed from `inputs`, against their definition.

    In float32 it must be right to rounding. In bfloat16 the two-times rule holds: it may
    err at most twice as far as the definition itself does in bfloat16.
    """
    actual = actual.cpu()
    inputs = tuple(part.cpu() for part in inputs)
    exact = definition(*(part.double() for part in inputs))
    assert actual.shape == exact.shape
    if actual.dtype == torch.float32:
        assert_close(actual, exact)
        return
    coarse = definition(*(part.to(actual.dtype) for part in inputs))
    assert_twice_at_most(actual, coarse, exact)


def assert_twice_at_most(actual: Tensor, coarse: Tensor, exact: Tensor) -> None:
    """`actual` errs at most twice as far as `coarse`, which is honest work in the same dtype."""
    # NaN fails: it isn't less than anything.
    assert rms(actual - exact) <= 2 * rms(coarse - exact)
    assert (actual - exact).abs().max() <= 2 * (coarse - exact).abs().max()


def assert_close(actual: Tensor, exact: Tensor, among: Tensor | None = None) -> None:
    """Equal to the rounding of float32, relative to the largest value.

    `among` is what `exact` is a part of, if that is a few values of many: they are made out
    of numbers as large as any other's, so their rounding is the same.
    """
    scale = (exact if among is None else among).abs().max().item()
    actual, exact, error = actual.cpu().double(), exact.double(), FLOAT32 * max(scale, 1e-30)
    # What says where they differ takes several times as long as to see that they don't.
    if actual.shape != exact.shape or not torch.allclose(actual, exact, rtol=0, atol=error):
        torch.testing.assert_close(actual, exact, rtol=0, atol=error)


def assert_small_rms_ratio(actual: Tensor, exact: Tensor) -> None:
    """For recurrences: the error's RMS against the signal's is that of one rounding."""
    bound = FLOAT32 if actual.dtype == torch.float32 else BFLOAT16_ROUNDING
    assert rms(actual.cpu() - exact) <= bound * rms(exact)
