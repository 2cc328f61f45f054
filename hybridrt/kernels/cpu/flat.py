"""For numba kernels that change states in their pages."""

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor


def flat_pages(
    cache: Float[Tensor, "  pages *state"], pages: Int64[Tensor, " rows"]
) -> tuple[Float[np.ndarray, " elements"], Int64[np.ndarray, " rows"]]:
    """The whole storage that `cache` is a view of, and where each row's state begins in it.

    So numba can index and vectorise the rows of strided pages. A state's own elements stand
    one behind the other.
    """
    storage = cache.untyped_storage()
    elements = storage.nbytes() // cache.itemsize
    flat = torch.empty(0, dtype=cache.dtype).set_(storage, 0, (elements,), (1,))
    offsets = pages.numpy() * cache.stride(0) + cache.storage_offset()
    return flat.numpy(), offsets


def move_states(
    cache: Shaped[Tensor, "  pages *state"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
) -> None:
    """Copies the state that each row starts from into its own page, where that is another."""
    moves = pages != initial_pages
    cache[pages[moves]] = cache[initial_pages[moves]]
