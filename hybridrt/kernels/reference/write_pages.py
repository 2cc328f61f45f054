"""write_pages in plain torch."""

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from hybridrt.kernels.reference.gather import movable


def write_pages(
    values: Shaped[Tensor, "  tokens *dims"],
    cache: Shaped[Tensor, "  blocks block_size *dims"],
    slots: Int64[Tensor, " tokens"],
) -> None:
    """See `hybridrt.kernels.write_pages`."""
    values, cache = movable(values.to(cache.dtype)), movable(cache)
    if slots.is_cuda:
        values, slots = _repeat_a_live_one(values, cache, slots)
    elif int(slots.min()) < 0:
        live = slots >= 0
        values, slots = values[live], slots[live]
    block_size = cache.shape[1]
    cache[slots // block_size, slots % block_size] = values


def _repeat_a_live_one(
    values: Shaped[Tensor, "  tokens *dims"],
    cache: Shaped[Tensor, "  blocks block_size *dims"],
    slots: Int64[Tensor, " tokens"],
) -> tuple[Tensor, Tensor]:
    """Lets padding write what the first live token writes, to the same slot.

    So the number of writes doesn't depend on the data, and no copy to the host is
    needed. With no live token at all, slot 0 is written with what it holds.
    """
    live = slots >= 0
    # An index of one element: one of none would be read on the host.
    first = live.to(torch.uint8).argmax(0, keepdim=True)
    slot = slots[first].clamp(min=0)
    any_live = live[first].view(-1, *[1] * (values.dim() - 1))
    fallback = torch.where(any_live, values[first], cache[0, :1])
    shape = (-1,) + (1,) * (values.dim() - 1)
    values = torch.where(live.view(shape), values, fallback)
    return values, torch.where(live, slots, slot)
