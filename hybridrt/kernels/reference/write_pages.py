"""write_pages in plain torch."""

from jaxtyping import Int64, Shaped
from torch import Tensor

from hybridrt.kernels.reference.gather import movable
from hybridrt.kernels.reference.padding import live_only


def write_pages(
    values: Shaped[Tensor, "  tokens *dims"],
    cache: Shaped[Tensor, "  blocks block_size *dims"],
    slots: Int64[Tensor, " tokens"],
) -> None:
    """See `hybridrt.kernels.write_pages`."""
    values, cache = movable(values.to(cache.dtype)), movable(cache)
    values, slots = live_only(values, slots, cache[0, :1])
    block_size = cache.shape[1]
    cache[slots // block_size, slots % block_size] = values
