"""Weights of layers at which mistakes show."""

import math

import torch
from torch import Tensor, nn


@torch.no_grad()
def randomise(module: nn.Module, seed: int = 0) -> None:
    """Norms, biases and time constants away from where mistakes cancel."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        parameter.copy_(_weights(name, parameter, draw))


def _weights(name: str, like: Tensor, draw: torch.Generator) -> Tensor:
    parent, _, leaf = name.rpartition(".")
    uniform = torch.rand(like.shape, generator=draw)
    normal = torch.randn(like.shape, generator=draw)
    if leaf == "A_log":  # memories from one token to hundreds
        return math.log(0.02) + math.log(100) * uniform
    if leaf == "recurrent_param":
        return 5 * uniform - 7
    if name in ("dt_bias", "dt_proj.bias", "dt_proj_bias"):
        return 4 * uniform - 4
    if leaf == "time_decay":
        return 5 * uniform - 6
    if "norm" in parent:
        return 0.5 + uniform
    if leaf in ("bias", "D"):
        return normal
    return normal * 1.5 / math.sqrt(like.shape[-1])
