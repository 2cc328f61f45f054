"""rotate in plain torch."""

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor


def rotate(
    x: Float[Tensor, "tokens heads head_dim"],
    table: Float32[Tensor, "positions 2 half"],
    positions: Int64[Tensor, " tokens"],
    interleaved: bool,
    back: bool,
) -> Float[Tensor, "tokens heads head_dim"]:
    """See `hybridrt.kernels.rotate`."""
    dim = 2 * table.shape[-1]
    cos, sin = table[positions][:, None].unbind(2)
    if back:
        sin = -sin
    rotated = x[..., :dim].float()
    axis = -1 if interleaved else -2
    out = rotated * torch.stack([cos, cos], dim=axis).flatten(-2)
    first, second = _pairs(rotated, interleaved)
    first_out, second_out = _pairs(out, interleaved)
    first_out.addcmul_(second, -sin)  # with `value=-1` compilers would round otherwise
    second_out.addcmul_(first, sin)
    out = out.to(x.dtype)
    return out if dim == x.shape[-1] else torch.cat([out, x[..., dim:]], dim=-1)


def _pairs(x: Float[Tensor, "tokens heads dim"], interleaved: bool) -> tuple[Tensor, Tensor]:
    """Views of the first and of the second member of every pair."""
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]
