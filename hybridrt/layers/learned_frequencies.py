"""Rotary embeddings whose frequencies are learned (Mistral Large 4)."""

from collections.abc import Iterable

import torch
from torch import nn

from hybridrt.layers.rope import Rope


class LearnedFrequencies(nn.Module):
    """`exp(alpha)`, by which the rotary frequencies are multiplied."""

    def __init__(self, pairs: int) -> None:
        super().__init__()
        alpha = torch.empty(pairs, dtype=torch.float32)
        self.alpha = nn.Parameter(alpha, requires_grad=False)

    def apply_to(self, ropes: Iterable[Rope]) -> None:
        """Gives the factors to these, before they make their tables."""
        for rope in ropes:
            rope.frequency_factors = self.alpha.exp()
