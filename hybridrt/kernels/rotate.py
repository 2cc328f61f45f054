"""Rotary position embeddings, applied."""

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from hybridrt.kernels.backend import numba_takes, triton_takes
from hybridrt.kernels.reference import rotate as reference
from hybridrt.kernels.rms_norm import rms_norm


def rotate(
    x: Float[Tensor, "tokens heads head_dim"],
    table: Float32[Tensor, "positions 2 half"],
    positions: Int64[Tensor, " tokens"],
    interleaved: bool = False,
    back: bool = False,
) -> Float[Tensor, "tokens heads head_dim"]:
    """Turns the first `2 half` values of every head by its token's angles, or `back`.

    RoFormer, arXiv 2104.09864. `table` has the cosines and sines of all positions. A pair is
    the values `(j, half + j)`, or `(2j, 2j + 1)` if `interleaved`. Computed in float32.
    """
    if numba_takes(x):
        from hybridrt.kernels.cpu import rotate as cpu

        return cpu.rotate(x, table, positions, interleaved, back)
    if triton_takes(x):
        from hybridrt.kernels.triton import rotate as on_gpu

        return on_gpu.rotate(x, table, positions, interleaved, back)
    return reference.rotate(x, table, positions, interleaved, back)


def rotate_normed(
    q: Float[Tensor, "tokens heads head_dim"],
    k: Float[Tensor, "tokens kv_heads head_dim"],
    q_weight: Float[Tensor, " head_dim"],
    k_weight: Float[Tensor, " head_dim"],
    eps: float,
    offset: float,
    table: Float32[Tensor, "positions 2 half"],
    positions: Int64[Tensor, " tokens"],
    interleaved: bool = False,
) -> tuple[Float[Tensor, "tokens heads head_dim"], Float[Tensor, "tokens kv_heads head_dim"]]:
    """`rotate` of the `rms_norm` of every head of queries and of keys, in their weights' dtypes."""
    if triton_takes(q):
        from hybridrt.kernels.triton import rotate as on_gpu

        norm = (q_weight, k_weight, eps, offset)
        return on_gpu.rotate_normed(q, k, *norm, table, positions, interleaved)
    q, k = rms_norm(q, q_weight, eps, offset), rms_norm(k, k_weight, eps, offset)
    where = (table, positions, interleaved)
    return rotate(q, *where), rotate(k, *where)


def rotate_and_norm(
    q: Float[Tensor, "tokens heads head_dim"],
    k: Float[Tensor, "tokens kv_heads head_dim"],
    latents: Float[Tensor, "tokens size"],
    weight: Float[Tensor, " size"],
    eps: float,
    offset: float,
    table: Float32[Tensor, "positions 2 half"],
    positions: Int64[Tensor, " tokens"],
    interleaved: bool = False,
) -> tuple[
    Float[Tensor, "tokens heads head_dim"],
    Float[Tensor, "tokens kv_heads head_dim"],
    Float[Tensor, "tokens size"],
]:
    """`rotate` of queries and of keys, of one dtype, and `rms_norm` of what stands beside them."""
    if triton_takes(q):
        from hybridrt.kernels.triton import rotate_and_norm as on_gpu

        norm = (latents, weight, eps, offset)
        return on_gpu.rotate_and_norm(q, k, *norm, table, positions, interleaved)
    where = (table, positions, interleaved)
    normed = rms_norm(latents, weight, eps, offset)
    if numba_takes(q, k):
        return rotate(q, *where), rotate(k, *where), normed
    turned = rotate(torch.cat([q, k], dim=1), *where)
    q, k = turned.split([q.shape[1], k.shape[1]], dim=1)
    return q, k, normed
