"""Writes new tokens into the pages of a token-kind layer."""

from collections.abc import Sequence

from jaxtyping import Int64, Shaped
from torch import Tensor

from hybridrt.kernels.backend import has_numba, triton_runs, triton_takes
from hybridrt.kernels.op import is_observed, nothing, torch_op
from hybridrt.kernels.reference import write_pages as reference


@torch_op(nothing, writes=["cache"])
def write_pages(
    values: Shaped[Tensor, "  tokens *dims"],
    cache: Shaped[Tensor, "  blocks block_size *dims"],
    slots: Int64[Tensor, " tokens"],
) -> None:
    """Writes `values[t]` to slot `slots[t]` of `cache`, in place.

    Slot `s` is token `s % block_size` of kernel block `s // block_size`; `cache` may
    have any strides, and values are rounded to its dtype. A slot of -1 marks a padding
    token and is skipped, so that a captured graph may carry a batch smaller than the one
    it was captured with. Live slots must be distinct.
    """
    if triton_runs(cache.device):
        from hybridrt.kernels.triton import write_pages as on_gpu

        return on_gpu.write_pages(values, cache, slots)
    if has_numba(values, cache, slots):
        from hybridrt.kernels.cpu import write_pages as cpu

        if cpu.takes(cache):
            return cpu.write_pages(values, cache, slots)
    return reference.write_pages(values, cache, slots)


def write_each(
    values: Sequence[Shaped[Tensor, "  tokens ..."]],
    caches: Sequence[Shaped[Tensor, "  blocks block_size ..."]],
    slots: Int64[Tensor, " tokens"],
) -> None:
    """`write_pages` of each of `values` to its cache: a token's slot is the same in all.

    The caches, which may be of unlike sizes and dtypes, must not overlap. In one launch where
    that can be; whoever observes calls is shown `write_pages` of each.
    """
    if triton_takes(slots) and not is_observed():
        from hybridrt.kernels.triton import write_pages as on_gpu

        return on_gpu.write_each(values, caches, slots)
    for part, cache in zip(values, caches, strict=True):
        write_pages(part, cache, slots)
    return None
