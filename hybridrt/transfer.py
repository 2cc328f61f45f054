"""Copies between the host's memory and the device's, for which nobody waits unasked."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

PARCEL = 2**20  # bytes that are copied at once, at most; a larger array is a parcel of its own
ALIGNMENT = 256  # of what is in it, as a device's own memory has it


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host's memory on the device; from pinned memory, so that nobody waits."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class Shipment:
    """Arrays on their way to a device, small ones in one copy.

    On a CPU they stay where they are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._parcels: list[_Parcel] = []

    def add(self, array: Shaped[np.ndarray, "*shape"]) -> Shaped[Tensor, "*shape"]:
        """The tensor that has the array's numbers, and shape, from `send` on."""
        if self._device.type == "cpu":
            return torch.from_numpy(array)
        if not self._parcels or array.nbytes > self._parcels[-1].room:
            self._parcels.append(_Parcel(max(PARCEL, array.nbytes), self._device))
        return self._parcels[-1].add(array)

    def send(self) -> None:
        """Begins all copies, for which nobody waits."""
        for parcel in self._parcels:
            parcel.send()


class _Parcel:
    """Bytes of the host's memory, and as many of the device's."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._packed = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._arrived = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._bytes = self._packed.numpy()
        self._end = 0

    @property
    def room(self) -> int:
        return len(self._bytes) - self._end

    def add(self, array: Shaped[np.ndarray, "*shape"]) -> Shaped[Tensor, "*shape"]:
        start, stop = self._end, self._end + array.nbytes
        self._bytes[start:stop].view(array.dtype).reshape(array.shape)[...] = array
        self._end = min(len(self._bytes), -(-stop // ALIGNMENT) * ALIGNMENT)
        dtype = torch.from_numpy(array[:0]).dtype
        return self._arrived[start:stop].view(dtype).view(array.shape)

    def send(self) -> None:
        used = self._packed[: self._end]
        self._arrived[: self._end].copy_(used, non_blocking=True)


@contextmanager
def waiting_raises() -> Iterator[None]:
    """Inside, what makes the host wait for a CUDA device is an error, as far as torch sees it."""
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode("error")
    try:
        yield
    finally:
        _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says at the first call that it is a prototype
        torch.cuda.set_sync_debug_mode(mode)


class HostCopy:
    """Copies of some tensors of one device, on their way to the host's memory."""

    def __init__(self, *tensors: Tensor) -> None:
        self._copies = [_begin(tensor) for tensor in tensors]
        self._arrived: torch.cuda.Event | None = None
        device = tensors[0].device
        if device.type != "cpu":
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(device))

    def wait(self) -> list[Tensor]:
        """The copies, once they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copies


def _begin(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
