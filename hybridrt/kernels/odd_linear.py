"""A linear layer on a GPU whose outputs fill no whole vectors, as with vocabularies of odd size.

The rows of what it gives then begin where no vector does, for which cuBLAS has slow kernels only
(benchmarks/results/gpu_kernels.md has them beside this).
"""

import torch
from jaxtyping import Float
from torch import Tensor

VECTOR = 8  # numbers of 16 bits in 16 bytes
FEWEST_OUTPUTS = 1024
"""For fewer a second call may cost more than it saves. Measured were 50,277 and more."""


def takes(x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"]) -> bool:
    """Whether `odd_linear` takes less time: numbers of 16 bits, and many outputs."""
    of_16_bits = x.dtype == weight.dtype and x.itemsize == 2
    return of_16_bits and len(weight) % VECTOR != 0 and len(weight) >= FEWEST_OUTPUTS


def odd_linear(
    x: Float[Tensor, "*batch inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
) -> Float[Tensor, "*batch outputs"]:
    """See `hybridrt.kernels.linear`. There are gaps between rows, so that each begins a vector.

    Outputs that fill vectors are one product and the few others another: a product of all of them
    into the same places is as slow.
    """
    outputs, rows = len(weight), x.flatten(0, -2)
    whole = outputs // VECTOR * VECTOR
    out = x.new_empty(len(rows), whole + VECTOR)
    for places in (slice(whole), slice(whole, outputs)):
        factor, into = weight[places].t(), out[:, places]
        if bias is None:
            torch.mm(rows, factor, out=into)
        else:
            torch.addmm(bias[places], rows, factor, out=into)
    return out[:, :outputs].unflatten(0, x.shape[:-1])
