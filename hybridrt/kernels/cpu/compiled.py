"""numba's compiler for what only compiled functions call: nothing is made for calls from Python."""

import numba

inner = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
inline = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
"""Of a few lines, a part of every function that calls it."""
