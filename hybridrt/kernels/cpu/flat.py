"""For numba kernels that read rows where they are, and change states in their pages."""

from math import prod

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

Elements = Float[np.ndarray, " elements"]
Offsets = Int64[np.ndarray, " rows"]


def flat_rows(tensor: Float[Tensor, "  rows *row"]) -> Elements:
    """All elements from a tensor's first to its last, whatever stands between its rows.

    So numba can index and vectorise rows that are far apart: row i begins at
    `i * tensor.stride(0)`. The elements of a row stand one behind the other.
    """
    rows, *row = tensor.shape
    length = (rows - 1) * tensor.stride(0) + prod(row) if tensor.numel() else 0
    return tensor.as_strided((length,), (1,)).numpy()


def row_starts(
    cache: Float[Tensor, "  pages *state"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
) -> tuple[Offsets, Offsets]:
    """Where in `flat_rows` the states begin that rows start from, and those that they leave.

    Rows that are padding, the last of all, are left out.
    """
    ids = pages.numpy()
    live = len(ids) if ids[-1] >= 0 else int((ids >= 0).sum())
    targets = ids[:live] * cache.stride(0)
    same = initial_pages is pages
    return targets if same else initial_pages.numpy()[:live] * cache.stride(0), targets


def clear_padding(out: Shaped[Tensor, "  tokens *dims"], rows: int, targets: Offsets) -> None:
    """Zeros for the tokens of those `rows` that `row_starts` left out: each has one, the last."""
    padding = rows - len(targets)
    if padding:
        out[-padding:] = 0


_BITS = {torch.float32: torch.float32, torch.bfloat16: torch.uint16, torch.float16: torch.int16}


def is_readable(tensor: Shaped[Tensor, "*shape"]) -> bool:
    """Whether `vectors` read it: numbers that they know, side by side in its last axis."""
    return tensor.dtype in _BITS and (tensor.stride(-1) == 1 or tensor.shape[-1] <= 1)


def flat_bits(tensor: Shaped[Tensor, "*shape"]) -> Shaped[np.ndarray, " elements"]:
    """All that stands from a tensor's first element to its last, as `vectors` read it."""
    length = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((length if tensor.numel() else 0,), (1,))
    return flat.view(_BITS.get(tensor.dtype, tensor.dtype)).numpy()


def kept_bits(tensor: Shaped[Tensor, "*shape"]) -> Shaped[np.ndarray, " elements"]:
    """As `flat_bits`, made once and kept on the tensor, which must never get other memory.

    For a layer's cache and for page tables: all steps, or all layers of a step, ask for them.
    """
    bits = getattr(tensor, "kept_bits", None)
    if bits is None:
        bits = tensor.kept_bits = flat_bits(tensor)  # pyright: ignore[reportAttributeAccessIssue]
    return bits
