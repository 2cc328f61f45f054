"""numba kernels for the CPU, compiled once and kept on disk.

What numba compiles is marked `no_type_check`, so that the checks of signatures that tests
put around every function leave it alone.
"""

import numba
import torch
from numba.core import config


def _share_threads() -> None:
    """As many threads as torch has. Starting numba's sets torch's number, so that is put back."""
    count = torch.get_num_threads()
    most: int = config.NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue]
    numba.set_num_threads(min(count, most))
    torch.set_num_threads(count)


_share_threads()
