"""The short causal convolution in front of a recurrence, or by itself."""

from typing import Literal

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
    batch: Rows,
    backend: StateBackend = "reference",
    activation: Literal["silu"] | None = "silu",
) -> Float[Tensor, "tokens channels"]:
    """`silu(bias + sum_k weight[:, k] * x[t - width + 1 + k])`, channel by channel.

    With `activation=None` it is the sum alone.
    Row i continues from the last `width - 1` inputs of its sequence, which stand, oldest
    first, in page `pages[i]` of `conv_state`, and leaves its own there. A sequence that
    begins (`has_initial_state` false) has zeros before it.
    """
    if backend == "mamba_ssm" and weight.shape[1] in _WIDTHS_OF_PACKAGE:
        from hybridrt.kernels.cuda import causal_conv1d as cuda

        return cuda.causal_conv1d(x, weight, bias, conv_state, pages, batch, activation)
    return reference.causal_conv1d(x, weight, bias, conv_state, pages, batch, activation)
