"""The short causal convolution in front of a recurrence, or by itself."""

from typing import Any, Literal

from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.op import like_first, torch_op
from hybridrt.kernels.reference import causal_conv1d as reference

_WIDTHS_OF_PACKAGE = (2, 3, 4)
"""What the package causal-conv1d is compiled for."""


@torch_op(like_first, writes=["conv_state"])
def causal_conv1d(
    x: Float[Tensor, "tokens channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, " channels"] | None,
    conv_state: Float[Tensor, "pages width-1 channels"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    backend: StateBackend = "reference",
    activation: Literal["silu"] | None = "silu",
    before: Float[Tensor, "tokens channels"] | None = None,
    after: Float[Tensor, "tokens channels"] | None = None,
) -> Float[Tensor, "tokens channels"]:
    """`silu(bias + sum_k weight[:, k] * x[t - width + 1 + k])`, channel by channel.

    With `activation=None` it is the sum alone. With `before` the inputs, which states hold, are
    `before * x`, and with `after` the result is `after` times the rest. All have x's dtype, to
    which each product is rounded.
    A state is the last `width - 1` inputs of a sequence, oldest first. Row i starts from the
    state in page `initial_pages[i]` of `conv_state` (zeros where `has_initial_state` is
    false) and leaves its own in `pages[i]`. A row that follows starts from what the row
    before it has left; see `Rows`. What stands in any other page is not changed.
    """
    rest = (bias, conv_state, pages, initial_pages, batch, activation)
    if backend == "numba":
        from hybridrt.kernels.cpu import causal_conv1d as cpu

        return cpu.causal_conv1d(x, weight, *rest, before, after)
    y = _convolve(backend, x if before is None else before * x, weight, *rest)
    return y if after is None else after * y


def _convolve(backend: StateBackend, x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    if backend == "mamba_ssm" and weight.shape[1] in _WIDTHS_OF_PACKAGE:
        from hybridrt.kernels.cuda import causal_conv1d as cuda

        return cuda.causal_conv1d(x, weight, *rest)
    if backend in ("triton", "mamba_ssm"):  # whose own package needs Triton too
        from hybridrt.kernels.triton import causal_conv1d as on_gpu

        return on_gpu.causal_conv1d(x, weight, *rest)
    return reference.causal_conv1d(x, weight, *rest)
