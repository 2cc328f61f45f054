"""Finds operations that make something as large as a cache."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Watch(TorchDispatchMode):
    def __init__(self, pool: Tensor, limit: int) -> None:
        super().__init__()
        self._pool = pool.untyped_storage().data_ptr()
        self._limit = limit

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() != self._pool:
                size = leaf.untyped_storage().nbytes()
                assert size <= self._limit, f"{func} made {size} bytes"
        return out


@contextmanager
def nothing_larger_than(limit: int, pool: Tensor) -> Iterator[None]:
    """Fails at a torch operation whose result has more bytes, if it isn't a view of `pool`."""
    with _Watch(pool, limit):
        yield
