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
        # A weight may be a part of a large storage.
        there = {self._pool, *_storages(args), *_storages(kwargs)}
        out = func(*args, **(kwargs or {}))
        for place, size in _storages(out).items():
            assert place in there or size <= self._limit, f"{func} made {size} bytes"
        return out


def _storages(tree: Any) -> dict[int, int]:
    """Bytes of the tensors' storages, by where they begin. oneDNN's weights have none."""
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    found = (tensor.untyped_storage() for tensor in tensors if not tensor.is_mkldnn)
    return {storage.data_ptr(): storage.nbytes() for storage in found}


@contextmanager
def nothing_larger_than(limit: int, pool: Tensor) -> Iterator[None]:
    """Fails at a torch operation that makes a result of more bytes.

    What it was given, or a view of that or of `pool`, isn't made.
    """
    with _Watch(pool, limit):
        yield
