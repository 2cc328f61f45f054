"""What numba compiled, read from disk without making numba ready to compile.

numba does that before each read: it imports what it knows of Python's and of NumPy's functions, and
looks through it for new ones. That takes as long as reading the kernels of a first token, which
need none of it. What is not on disk is compiled as ever: then numba makes itself ready once more.
"""

from collections.abc import Callable
from typing import Any

from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.runtime.nrt import rtsys


class OnDisk(FunctionCache):
    """The files of one function."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was compiled for such arguments, or None.

        Of what numba makes ready for compiled code to call, kernels need its allocator alone, for
        loops over threads.
        """
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)


class Callback(CFunc):
    """A function for compiled code to call by its address, kept on disk."""

    def __init__(
        self, function: Callable[..., Any], signature: Any, options: dict[str, Any]
    ) -> None:
        kinds = signature.args, signature.return_type
        super().__init__(function, kinds, locals={}, options=options)
        self._cache = OnDisk(function)
        self.compile()
