"""numba's compiler for what only compiled functions call: nothing is made for calls from Python.

On disk numba keeps the function that Python calls, with all that it calls, and makes it anew when
its own file changes. After a change of another file, remove the `*.nbi` in `__pycache__`.
"""

from typing import Any

import numba

_INSIDE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

inner: Any = numba.njit(**_INSIDE)
inline: Any = numba.njit(**_INSIDE, forceinline=True)
"""Of a few lines, a part of every function that calls it."""
inner_sums: Any = numba.njit(**_INSIDE, fastmath={"contract", "nsz"})
"""Of loops over numbers, whose products and sums may be joined."""
