"""xIELU, against its definition and its derivative."""

import math

import torch

from hybridrt.kernels.reference.xielu import xielu

ALPHAS = torch.tensor([0.2]), torch.tensor([-0.4])
BETA, EPS = torch.tensor(0.5), torch.tensor(-1e-6)


def test_equals_its_definition() -> None:
    x = torch.linspace(-6, 6, 101)
    a_p, a_n = math.log1p(math.exp(0.2)), 0.5 + math.log1p(math.exp(-0.4))
    expected = [
        a_p * v * v + 0.5 * v if v > 0 else a_n * (math.expm1(min(v, -1e-6)) - v) + 0.5 * v
        for v in x.tolist()
    ]
    torch.testing.assert_close(xielu(x, *ALPHAS, BETA, EPS), torch.tensor(expected))


def test_its_slope_at_zero_is_beta_from_both_sides() -> None:
    around = torch.tensor([-1e-3, 1e-3], dtype=torch.float32)
    slopes = xielu(around, *ALPHAS, BETA, EPS) / around
    torch.testing.assert_close(slopes, torch.full((2,), 0.5), atol=2e-3, rtol=0)


def test_what_goes_out_has_the_dtype_of_what_comes_in() -> None:
    x = torch.randn(3, 5).bfloat16()
    out = xielu(x, *ALPHAS, BETA, EPS)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, xielu(x.float(), *ALPHAS, BETA, EPS).bfloat16())
