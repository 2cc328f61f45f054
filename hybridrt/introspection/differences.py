"""How far two tensors are apart, and from which token on."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

TOLERANCES = {
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
    torch.int8: 5e-2,
    torch.float8_e4m3fn: 3e-1,
}
"""By default, of the coarser dtype of the two sides: what rounding adds up to in a deep model."""


Form = Literal["reordered", "multiplied"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor against another that should be the same.

    Attributes:
        largest: the largest absolute difference; inf where one side has a NaN or another shape.
        scale: the root mean square of the expected tensor, 1 if that is 0.
        token: the position of the first token that leaves tolerance; None: none does, or the
            tensor has no tokens.
        head: the head that is furthest off; None: the tensor has no heads.
        form: out of tolerance, but the same numbers in another order, or all multiplied by the
            same one: what two right ways of computing may have unlike.
    """

    largest: float
    scale: float
    token: int | None = None
    head: int | None = None
    form: Form | None = None

    @property
    def error(self) -> float:
        """The largest difference as a share of the scale."""
        return self.largest / self.scale


UNLIKE_SHAPES = Difference(math.inf, 1.0)


OF_BITS = {"int8": torch.int8, "int4": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn}
"""Dtypes that round about as much as quantised weights and caches of these names."""


def default_tolerance(*dtypes: torch.dtype) -> float:
    """What two sides of these dtypes may be apart, as a share of a tensor's scale."""
    return max(TOLERANCES.get(dtype, TOLERANCES[torch.float32]) for dtype in dtypes)


def difference(
    given: Tensor,
    expected: Tensor,
    tolerance: float,
    positions: Tensor | None = None,
    head_axis: int | None = None,
) -> Difference:
    """`given` against `expected`, computed in float32.

    `positions: int64[tokens]` are those of the first axis; None: that isn't one of tokens.
    """
    if given.shape != expected.shape:
        return UNLIKE_SHAPES
    ours, theirs = (x.detach().to("cpu", torch.float32) for x in (given, expected))
    apart = _apart(ours, theirs)
    scale = _scale(theirs)
    token = head = None
    if apart.numel() and positions is not None:
        left = (apart.flatten(1).amax(1) > tolerance * scale).nonzero()
        token = int(positions[left[0, 0]]) if len(left) else None
    if apart.numel() and head_axis is not None:
        head = int(apart.movedim(head_axis, 0).flatten(1).amax(1).argmax())
    largest = apart.max().item() if apart.numel() else 0.0
    form = _form(ours, theirs, tolerance * scale) if largest > tolerance * scale else None
    return Difference(largest, scale, token, head, form)


def _form(ours: Tensor, theirs: Tensor, allowed: float) -> Form | None:
    factor = (ours * theirs).sum() / theirs.square().sum()
    if factor != 0 and not (_apart(ours, factor * theirs) > allowed * factor.abs()).any():
        return "multiplied"
    ordered = (x.flatten().sort().values for x in (ours, theirs))
    return None if (_apart(*ordered) > allowed).any() else "reordered"


def _apart(ours: Tensor, theirs: Tensor) -> Tensor:
    """Absolute differences; a NaN or an infinity on one side alone is infinitely far off."""
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = (ours - theirs).abs().nan_to_num(nan=math.inf)
    return torch.where(same, 0.0, apart)


def _scale(tensor: Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    scale = finite.square().mean().sqrt().item() if finite.numel() else 0.0
    return scale or 1.0
