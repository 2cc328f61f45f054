"""Copies between the host's memory and the device's, for which nobody waits unasked."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host's memory on the device; from pinned memory, so that nobody waits."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


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
