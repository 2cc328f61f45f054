"""sample in plain torch."""

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from hybridrt.transfer import to_device

ONE = 2.0**40
"""The weight of the likeliest token: 2^22 of it add up to less than an int64 holds."""


def sample(
    logits: Float[Tensor, "rows vocab"],
    temperature: Float64[Tensor, " rows"],
    least: Float64[Tensor, " rows"],
    uniform: Float64[Tensor, " rows"],
) -> Int64[Tensor, " rows"]:
    """See `hybridrt.kernels.sample`; `least` is the logarithm of `min_p`."""
    numbers = to_device(torch.stack((temperature, least, uniform)), logits.device)[..., None]
    is_greedy = numbers[0] == 0
    drawn = _draw(logits.double(), numbers[0].where(~is_greedy, 1.0), *numbers[1:])
    return torch.where(is_greedy[:, 0], logits.argmax(-1), drawn)


def _draw(
    logits: Float64[Tensor, "rows vocab"],
    temperature: Float64[Tensor, "rows 1"],
    least: Float64[Tensor, "rows 1"],
    uniform: Float64[Tensor, "rows 1"],
) -> Int64[Tensor, " rows"]:
    # With the likeliest at 0, no temperature is so low that a logit becomes infinite.
    below = (logits - logits.amax(-1, keepdim=True)) / temperature
    weights = torch.where(below >= least, below.exp() * ONE, 0.0).long()
    sums = weights.cumsum(-1)
    total = sums[:, -1:]
    # A float64 has fewer digits than a large sum, and may be rounded up.
    target = torch.minimum((uniform * total.double()).long(), total - 1)
    # `right`: a token of weight 0 repeats the sum before it and is stepped over.
    return torch.searchsorted(sums, target, right=True)[:, 0]
