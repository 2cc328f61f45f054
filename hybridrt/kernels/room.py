"""Memory in which weights stand one behind another.

Linux puts memory into pages of 2 MiB where all of such a page was asked for at once, and the rest
into small ones, of which a processor has to look up each. A weight that has memory of its own
begins and ends in small pages: one of 4 MiB with half of it, one of 2 MiB with all.
"""

from math import prod

import torch
from torch import Tensor

HUGE_PAGE = 2**21

CHUNK = 2**28
"""Bytes that are asked for at once. A page takes memory from its first write on, not before."""

LINE = 64
"""Bytes, at multiples of which tensors begin."""


class Room:
    """Hands out memory on a CPU. A chunk of it is given back with the last tensor that has a part.

    With `chunk=0` every tensor has memory of its own.
    """

    def __init__(self, chunk: int = CHUNK) -> None:
        self._chunk = chunk
        self._left = torch.empty(0, dtype=torch.uint8)

    def new_empty(self, like: Tensor, *shape: int) -> Tensor:
        """A tensor of another's dtype, on its device; not from here, unless that is a CPU."""
        if self._chunk == 0 or like.device.type != "cpu":
            return like.new_empty(shape)
        size = prod(shape) * like.itemsize
        taken = -(-size // LINE) * LINE
        if taken > len(self._left):
            new = torch.empty(max(taken, self._chunk) + HUGE_PAGE, dtype=torch.uint8, device="cpu")
            self._left = new[-new.data_ptr() % HUGE_PAGE :]
        part, self._left = self._left[:size], self._left[taken:]
        return part.view(like.dtype).view(shape)

    def moved(self, tensor: Tensor) -> Tensor:
        """A copy that stands here, or the tensor itself, which would get memory of its own."""
        if self._chunk == 0 or tensor.device.type != "cpu":
            return tensor
        return self.new_empty(tensor, *tensor.shape).copy_(tensor)


OF_ITS_OWN = Room(0)
