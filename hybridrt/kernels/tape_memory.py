"""The memory of what tapes' calls compute: given again to later calls, as an allocator would."""

import weakref
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

LINE = 64  # bytes: what a processor reads at once of memory


class TapeMemory:
    """Rooms for tensors, each lent until nobody holds the tensor any more.

    Calls are made again in the order in which they were recorded, so whatever is written to a room
    that was lent anew is written when what stood there before has been read. A step's layers thus
    take turns in a few rooms, which stay in the nearer caches, and so do tapes that are never
    replayed at the same time.
    """

    def __init__(self) -> None:
        self._rooms: dict[int, np.ndarray] = {}  # by address
        self._free: defaultdict[int, list[np.ndarray]] = defaultdict(list)  # by bytes

    @property
    def num_bytes(self) -> int:
        """Of all rooms."""
        return sum(room.nbytes for room in self._rooms.values())

    def lend(self, like: Tensor) -> Tensor:
        """Another tensor of that shape and dtype, in a room; what stands in it is arbitrary."""
        size = max(LINE, 1 << (like.nbytes - 1).bit_length())  # so that sizes have rooms in common
        free = self._free[size]
        room = free.pop() if free else self._new_room(size)
        lent = room[: like.nbytes]  # its own object, which lives as long as any tensor on it
        weakref.finalize(lent, free.append, room).atexit = False
        return torch.from_numpy(lent).view(like.dtype).view(like.shape)

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor stands in one of the rooms."""
        # oneDNN's own tensors have no address.
        return not tensor.is_mkldnn and tensor.untyped_storage().data_ptr() in self._rooms

    def given_back(self, tensor: Tensor) -> Tensor:
        """The same numbers where they stand, though the room, if it is one, is lent to others."""
        if not self.has(tensor):
            return tensor
        room = torch.from_numpy(self._rooms[tensor.untyped_storage().data_ptr()])
        place = tensor.shape, tensor.stride(), tensor.storage_offset()
        return room.view(tensor.dtype).as_strided(*place)

    def _new_room(self, size: int) -> np.ndarray:
        whole = np.empty(size + LINE, np.uint8)
        begin = -whole.ctypes.data % LINE
        room = whole[begin : begin + size]
        self._rooms[room.ctypes.data] = room
        return room
