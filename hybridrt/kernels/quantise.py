"""Numbers in eight bits: how caches of tokens are quantised, and how far off that is.

With s the scale and x the number, of at most 2^127, a round trip through float32 errs by at
most

- e4m3: `max(2^-4 |x|, 2^-10 s)` where `|x| <= 448 s`. The format has three bits behind the
  leading one, so a number is half a unit in the last place off, 2^-4 of it; below 2^-6 its
  steps are 2^-9. A larger |x| becomes 448 s.
- int8: `s / 2`, as the steps are s, and s is chosen so that the largest is 127 s.

Both hold up to the rounding of float32 when x is divided by s and multiplied again, a
factor of `1 + 2^-21`. Reading into a narrower dtype rounds once more.

Attention over quantised keys and values: let a key's error be e and a value's d, and D the
largest `scale * sum_i |q_i| |e_i|` of the tokens that a query sees. Every score is off by at
most D, so every weight by a factor within `exp(+-2 D)`, and an element of the output by at
most `max |d| + (exp(2 D) - 1) max |v|`. (With a soft cap or with sinks too: a cap only draws
scores nearer to each other, and a sink is a token with an exact score and the value 0.)
"""

import torch
from jaxtyping import Float, Float8e4m3fn, Float32, Int8, Shaped
from torch import Tensor

from hybridrt.kernels.reference import quantise as reference
from hybridrt.kernels.reference.quantise import E4M3_LARGEST, GROUP, INT8_LARGEST

__all__ = [
    "E4M3_LARGEST",
    "GROUP",
    "INT8_LARGEST",
    "dequantise",
    "dequantise_groups",
    "quantise_e4m3",
    "quantise_e4m3_groups",
    "quantise_int8",
]


def quantise_e4m3(
    x: Float[Tensor, "tokens heads dim"], scale: Float32[Tensor, " heads"]
) -> Float8e4m3fn[Tensor, "tokens heads dim"]:
    """`x / scale` of each head, in e4m3 (OCP 8-bit floating point; arXiv 2209.05433).

    Values beyond `+-448 * scale` become that.
    """
    return reference.quantise_e4m3(x, scale)


def quantise_e4m3_groups(
    x: Float[Tensor, "*tokens dim"],
) -> tuple[Float8e4m3fn[Tensor, "*tokens dim"], Float32[Tensor, "*tokens groups"]]:
    """e4m3 with a scale for every `GROUP` channels of each token, their largest over 448.

    The last group may be smaller. Zeros stay zeros.
    """
    return reference.quantise_e4m3_groups(x)


def quantise_int8(
    x: Float[Tensor, "*tokens dim"],
) -> tuple[Int8[Tensor, "*tokens dim"], Float32[Tensor, "*tokens"]]:
    """int8 with a scale for each row of the last axis, its largest over 127."""
    return reference.quantise_int8(x)


def dequantise(
    values: Shaped[Tensor, "*shape"], scale: Float32[Tensor, "..."], dtype: torch.dtype
) -> Float[Tensor, "*shape"]:
    """`values * scale`, multiplied in float32. `scale` broadcasts to the shape of `values`."""
    return reference.dequantise(values, scale, dtype)


def dequantise_groups(
    values: Shaped[Tensor, "*tokens dim"],
    scale: Float32[Tensor, "*tokens groups"],
    dtype: torch.dtype,
) -> Float[Tensor, "*tokens dim"]:
    """Takes what `quantise_e4m3_groups` gave back to numbers."""
    return reference.dequantise_groups(values, scale, dtype)
