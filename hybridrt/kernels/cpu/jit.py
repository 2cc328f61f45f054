"""How numba compiles the kernels of this folder.

Divisions are those of the processor: Python's, which raise at zero, keep a loop from being
vectorised. Of fast mathematics there is all that leaves infinities and NaN what they are.

On disk numba keeps a function that Python calls with all that it calls, and makes it anew when its
own file changes. After a change of another file, remove the `*.nbi` in `__pycache__`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numba

_OPTIONS: dict[str, Any] = {
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},
    "error_model": "numpy",
}

FEW = 2**15
"""Elements up to which waking other threads would cost more than they save."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

kernel: Decorator = partial(numba.njit, **_OPTIONS, cache=True)
"""Compiles for one thread, and keeps the result on disk."""

parallel_kernel: Decorator = partial(numba.njit, **_OPTIONS, parallel=True, cache=True)
"""Compiles loops over `numba.prange` for all threads, and keeps the result on disk."""

inlined: Decorator = partial(numba.njit, **_OPTIONS, inline="always")
"""Compiles as a part of what calls it."""

_WITHIN: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

inner: Decorator = numba.njit(**_WITHIN)
"""Compiles what only compiled functions call: nothing is made for calls from Python."""

inner_sums: Decorator = numba.njit(**_WITHIN, fastmath={"contract", "nsz"})
"""The same, free to multiply and add in one step; sums stay in the order they are written in."""

inline: Decorator = numba.njit(**_WITHIN, forceinline=True)
"""`inner` of a few lines, which become a part of every function that calls them."""
