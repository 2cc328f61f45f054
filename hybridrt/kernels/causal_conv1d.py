"""The short causal convolution in front of a state-space scan."""

from jaxtyping import Float, Int64
from torch import Tensor

from hybridrt.batch import Rows
from hybridrt.kernels.backend import StateBackend
from hybridrt.kernels.reference import causal_conv1d as reference


def causal_conv1d(
    x: Float[Tensor, "tokens channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, " channels"] | None,
    conv_state: Float[Tensor, "pages width-1 channels"],
    pages: Int64[Tensor, " rows"],
    batch: Rows,
    backend: StateBackend = "reference",
) -> Float[Tensor, "tokens channels"]:
    """`silu(bias + sum_k weight[:, k] * x[t - width + 1 + k])`, channel by channel.

    Row i continues from the last `width - 1` inputs of its sequence, which stand, oldest
    first, in page `pages[i]` of `conv_state`, and leaves its own there. A sequence that
    begins (`has_initial_state` false) has zeros before it.
    """
    if backend == "mamba_ssm":
        from hybridrt.kernels.cuda import causal_conv1d as cuda

        return cuda.causal_conv1d(x, weight, bias, conv_state, pages, batch)
    return reference.causal_conv1d(x, weight, bias, conv_state, pages, batch)
