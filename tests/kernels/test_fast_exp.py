"""numba's own exp keeps what it promises."""

import numba
import numpy as np
import pytest

from hybridrt.kernels.cpu.fast_exp import fast_exp


@numba.njit
def _each(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(x)):
        out[i] = fast_exp(x[i])


def _exp(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = values.astype(np.float32)
    out = np.empty_like(x)
    _each(x, out)
    return x, out


@pytest.mark.parametrize(("low", "high"), [(-87, 88), (-1, 1), (-1e-3, 1e-3), (-0.35, 0.35)])
def test_relative_error(low: float, high: float) -> None:
    x, out = _exp(np.linspace(low, high, 100_003))
    exact = np.exp(x.astype(np.float64))
    assert np.all(np.abs(out - exact) <= (2e-7 + 8e-8 * np.abs(x)) * exact)


def test_where_powers_change() -> None:
    """Around every half-integer power of two, where the polynomial's ends meet."""
    halves = (np.arange(-125, 126) + 0.5) * np.log(2)
    x, out = _exp(np.concatenate([np.nextafter(halves, s, dtype=np.float32) for s in (-99, 99)]))
    exact = np.exp(x.astype(np.float64))
    assert np.all(np.abs(out - exact) <= (2e-7 + 8e-8 * np.abs(x)) * exact)


def test_zero_gives_one() -> None:
    assert _exp(np.zeros(1))[1][0] == 1.0


def test_far_below_zero_nearly_nothing_is_left() -> None:
    _, out = _exp(np.array([-88.0, -1e3, -1e9, -np.inf]))
    assert np.all((out >= 0) & (out <= 2e-38))
