"""Tiny tensors lose more to waking threads than they win."""

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread in torch and in numba."""
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])
