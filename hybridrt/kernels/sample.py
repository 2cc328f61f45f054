"""The draw of the next token."""

from jaxtyping import Float, Float64, Int64
from torch import Tensor

from hybridrt.kernels.backend import has_numba, triton_runs
from hybridrt.kernels.reference import sample as reference


def likeliest(logits: Float[Tensor, "rows vocab"]) -> Int64[Tensor, " rows"]:
    """The first of the likeliest tokens of each row: `sample` at temperature 0."""
    if has_numba(logits):
        from hybridrt.kernels.cpu import sample as cpu

        return cpu.likeliest(logits)
    if triton_runs(logits.device):
        from hybridrt.kernels.triton import sample as on_gpu

        return on_gpu.likeliest(logits)
    return logits.argmax(-1)


def sample(
    logits: Float[Tensor, "rows vocab"],
    temperature: Float64[Tensor, " rows"],
    min_p: Float64[Tensor, " rows"],
    uniform: Float64[Tensor, " rows"],
) -> Int64[Tensor, " rows"]:
    """A token a row: the likeliest at temperature 0, else the one at `uniform`, from [0, 1).

    A token whose logit is `x` below the row's largest has the weight
    `floor(2^40 exp(-x / temperature))`, or 0 where `-x / temperature` is below `log(min_p)`. What
    is drawn is the first token at which the sum of weights is above `uniform` times that of all.
    Of equally likely tokens the first is the likeliest. The numbers of rows are on the host.

    Weights are integers, whose sums are the same in any order: a row's token depends on nothing
    but the row, and every backend draws the same one. Their `exp` is that of float64, which may
    differ in the last place, so that a weight of one may be off by 1 from that of another. A
    token is another one only where `uniform` is that near to its border: within `vocab` units, of
    which there are 2^40 or more in all.
    """
    given = (logits, temperature, min_p.log(), uniform)
    if has_numba(logits):
        from hybridrt.kernels.cpu import sample as cpu

        return cpu.sample(*given)
    if triton_runs(logits.device):
        from hybridrt.kernels.triton import sample as on_gpu

        return on_gpu.sample(*given)
    return reference.sample(*given)
