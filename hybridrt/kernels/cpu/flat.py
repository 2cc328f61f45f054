"""A cache of strided pages as one flat array, whose rows numba can index and vectorise."""

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor


def flat_pages(
    cache: Float[Tensor, "  pages *state"], pages: Int64[Tensor, " rows"]
) -> tuple[Float[np.ndarray, " elements"], Int64[np.ndarray, " rows"]]:
    """The whole storage that `cache` is a view of, and where each row's state begins in it.

    A state's own elements stand one behind the other.
    """
    storage = cache.untyped_storage()
    elements = storage.nbytes() // cache.itemsize
    flat = torch.empty(0, dtype=cache.dtype).set_(storage, 0, (elements,), (1,))
    offsets = pages.numpy() * cache.stride(0) + cache.storage_offset()
    return flat.numpy(), offsets
