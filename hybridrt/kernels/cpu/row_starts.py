"""Where the states of rows stand, for kernels that change them in their pages."""

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor

Offsets = Int64[np.ndarray, " rows"]


def row_starts(
    cache: Float[Tensor, "  pages *state"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
) -> tuple[Offsets, Offsets]:
    """Where states begin, in elements from the first page on: those read, and those left."""
    targets = pages.numpy() * cache.stride(0)
    same = initial_pages is pages
    return targets if same else initial_pages.numpy() * cache.stride(0), targets
