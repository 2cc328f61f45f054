"""Leaves padding out of a write: what has the place -1."""

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from hybridrt.kernels.tape import recording


def may_pad(places: Int64[Tensor, " rows"]) -> bool:
    """Whether a place may be -1. Where that can't be asked, any may be."""
    return _is_unreadable(places) or bool((places < 0).any())


def _is_unreadable(places: Tensor) -> bool:
    """Whether what happens must not depend on the numbers: on a CUDA device, and on a tape."""
    return places.is_cuda or recording.tape is not None


def live_only(
    values: Shaped[Tensor, "  rows *dims"],
    places: Int64[Tensor, " rows"],
    held: Shaped[Tensor, "  1 *dims"],
) -> tuple[Shaped[Tensor, "  live *dims"], Int64[Tensor, " live"]]:
    """What to write and where, without padding; `held` is what place 0 holds."""
    if _is_unreadable(places):
        return _repeat_a_live_one(values, places, held)
    if may_pad(places):
        live = places >= 0
        return values[live], places[live]
    return values, places


def _repeat_a_live_one(
    values: Shaped[Tensor, "  rows *dims"],
    places: Int64[Tensor, " rows"],
    held: Shaped[Tensor, "  1 *dims"],
) -> tuple[Tensor, Tensor]:
    """Lets padding write what the first live row writes, to the same place.

    So the number of writes doesn't depend on the data, and no copy to the host is
    needed. With no live row at all, place 0 is written with what it holds.
    """
    live = places >= 0
    # An index of one element: one of none would be read on the host.
    first = live.to(torch.uint8).argmax(0, keepdim=True)
    place = places[first].clamp(min=0)
    shape = (-1,) + (1,) * (values.dim() - 1)
    fallback = torch.where(live[first].view(shape), values[first], held)
    values = torch.where(live.view(shape), values, fallback)
    return values, torch.where(live, places, place)
