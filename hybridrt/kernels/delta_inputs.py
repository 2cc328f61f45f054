"""What the gated delta rule is given, of what a layer projects."""

from jaxtyping import Float, Float32
from torch import Tensor

from hybridrt.kernels.backend import numba_takes, triton_takes
from hybridrt.kernels.reference import delta_inputs as reference


def delta_inputs(
    qk: Float[Tensor, "tokens two_key_dims"],
    a: Float[Tensor, "tokens heads"],
    b: Float[Tensor, "tokens heads"],
    A_log: Float32[Tensor, " heads"],
    dt_bias: Float32[Tensor, " heads"],
    key_heads: int,
    beta_scale: float,
) -> tuple[
    Float32[Tensor, "tokens key_heads head_k_dim"],
    Float32[Tensor, "tokens key_heads head_k_dim"],
    Float32[Tensor, "tokens heads"],
    Float32[Tensor, "tokens heads"],
]:
    """q, k, g and beta, as `hybridrt.kernels.gated_delta_rule` takes them (arXiv 2412.06464).

    All heads' queries and then all keys stand side by side in `qk`. Each is divided by
    `sqrt(sum(x^2) + 1e-6)`, queries by `sqrt(head_k_dim)` too. With `A_log`, `dt_bias` and `a` of a
    value head, g is `-exp(A_log) softplus(a + dt_bias)`; beta is `beta_scale sigmoid(b)`.
    """
    if numba_takes(qk, a, b):
        from hybridrt.kernels.cpu import delta_inputs as cpu

        return cpu.delta_inputs(qk, a, b, A_log, dt_bias, key_heads, beta_scale)
    if triton_takes(qk):
        from hybridrt.kernels.triton import delta_inputs as on_gpu

        return on_gpu.delta_inputs(qk, a, b, A_log, dt_bias, key_heads, beta_scale)
    return reference.delta_inputs(qk, a, b, A_log, dt_bias, key_heads, beta_scale)
