"""Rotary position embeddings, applied."""

from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.compiler import is_compiling

from hybridrt.kernels.backend import numba_takes, triton_runs
from hybridrt.kernels.reference import rotate as reference


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
    # A compiler makes a kernel of its own, with what stands beside.
    if triton_runs(x.device) and not is_compiling():
        from hybridrt.kernels.triton import rotate as on_gpu

        return on_gpu.rotate(x, table, positions, interleaved, back)
    return reference.rotate(x, table, positions, interleaved, back)
