"""How much memory there is, how much of it the cache takes unasked, and when it is cleared."""

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable

import psutil
import torch
from jaxtyping import UInt8
from torch import Tensor, nn

CPU_SHARE = 0.5  # of what is free behind the weights: a CPU shares its memory with others
CUDA_SHARE = 0.8  # the rest is for activations

KEPT_EACH, KEPT = 2**28, 2**30
"""Bytes up to which memory that was given back is kept for what comes next: of one piece, and at
the heap's end. What lies before something in use is kept in any case."""

CLEARED = 2**28
"""Bytes of a pool that are cleared while an engine starts."""

_AT_ONCE = 2**21  # of these, a huge page: whoever asks for memory meanwhile waits for so many
_POPULATE_WRITE = 23  # of Linux's `madvise`, from 5.14 on; Python has no name for it
_LEAST_URGENT = 19  # of `nice`

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of glibc's `mallopt`
SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def free_memory(device: torch.device) -> int:
    """Bytes that are free on the device now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def total_memory(device: torch.device) -> int:
    """Bytes that the device has."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return psutil.virtual_memory().total


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters, a shared one once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def default_cache_memory(model: nn.Module, device: torch.device, useful: int) -> int:
    """`useful` bytes, or the share of what the weights leave free, whichever is less.

    Raises:
        ValueError: the weights leave nothing free.
    """
    free, weights = free_memory(device), parameter_bytes(model)
    left = free - weights
    if left <= 0:
        raise ValueError(
            f"the weights take {weights} bytes and {free} are free on {str(device)!r}, which "
            f"leaves no memory for the cache; to plan all the same, give cache_memory"
        )
    return min(useful, int(left * (CUDA_SHARE if device.type == "cuda" else CPU_SHARE)))


def keep_freed_memory() -> bool:
    """Has the C library keep what a step gave back for the next one; whether it does.

    glibc gives large pieces back to the system, which clears every page of the next ones; in a
    long prefill they are all results. Other libraries are left alone, and so is one that the
    environment has a setting for.
    """
    if any(name in os.environ for name in SETTINGS):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if set_option is None:
        return False
    return bool(set_option(_MMAP_THRESHOLD, KEPT_EACH) and set_option(_TRIM_THRESHOLD, KEPT))


def clear_ahead(pool: UInt8[Tensor, "slabs bytes"]) -> threading.Thread | None:
    """Has the system clear a pool's first pages now, in a thread, and not one by one in steps.

    What stands there stays. Those that nobody wrote before are huge ones, if there are any: a
    sequence's blocks lie slabs apart, and to find out where each small page is takes a processor as
    long as to read a part of it. The rest of the pool is small ones, as a huge one is looked for
    and cleared as a whole while a step waits. The thread takes what time others leave; where the
    system can't do it, there is none, or it ends at once.
    """
    if sys.platform != "linux":
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    thread = threading.Thread(target=_clear, args=(pool, advise), daemon=True)
    thread.start()
    return thread


def _clear(pool: Tensor, advise: Callable[[int, int, int], int]) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_URGENT)
    start = pool.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    end = pool.data_ptr() + min(pool.nbytes, CLEARED)
    while start < end:
        size = min(_AT_ONCE - start % _AT_ONCE, end - start)
        advise(start, size, mmap.MADV_HUGEPAGE)  # or not, where there are none
        if advise(start, size, _POPULATE_WRITE) != 0:
            return
        start += size
