"""How fast layers forget: the decay of every token, from what a kernel is given."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import log
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float32
from torch import Tensor

LOWEST_LOG = -87.0  # below it float32 has no decay but 0


class Decay(NamedTuple):
    """Of the tokens before each recorded position, back to the one before it: for each head the
    mean of the decays, and the mean of their logarithms.
    """

    mean: Float[Tensor, "positions heads"]
    mean_log: Float[Tensor, "positions heads"]

    @property
    def half_life(self) -> Float[Tensor, "positions heads"]:
        """Tokens after which half is left of what stood in the state; inf where all is kept."""
        return log(2) / -self.mean_log


class TokenDecays(ABC):
    """The decays of a step's tokens in one kernel call, summed up run by run."""

    @abstractmethod
    def sum(self, tokens: slice) -> Float32[Tensor, " *sums"]:
        """A sum over these tokens, which can be added to that of others."""

    @abstractmethod
    def finish(self, means: Float32[Tensor, " positions *sums"]) -> Decay:
        """What the means over all tokens of intervals say."""


class HeadDecays(TokenDecays):
    """One logarithm a token and head, or several a head, of which it has the mean."""

    def __init__(self, log_decay: Float[Tensor, "tokens heads *channels"]) -> None:
        logs = log_decay.float().clamp(min=LOWEST_LOG)
        decays = logs.exp()
        if logs.dim() == 3:
            decays, logs = decays.mean(-1), logs.mean(-1)
        self._both = torch.stack([decays, logs], dim=1)

    def sum(self, tokens: slice) -> Float32[Tensor, " *sums"]:
        return self._both[tokens].sum(0)

    def finish(self, means: Float32[Tensor, " positions *sums"]) -> Decay:
        return Decay(*means.unbind(1))


class ChannelDecays(TokenDecays):
    """Mamba-1: a logarithm `dt A` for each channel and each number of its state.

    Number n of all channels counts as head n. Taking `exp` of all of them would cost as much as
    the scan, so the mean over tokens is the geometric one: `exp(A mean(dt))`.
    """

    def __init__(
        self, dt: Float[Tensor, "tokens channels"], A: Float[Tensor, "channels state_size"]
    ) -> None:
        self._dt, self._A = dt, A.float()

    def sum(self, tokens: slice) -> Float32[Tensor, " *sums"]:
        return self._dt[tokens].sum(0, dtype=torch.float32)

    def finish(self, means: Float32[Tensor, " positions *sums"]) -> Decay:
        log_decay = self._A * means[..., None]
        return Decay(log_decay.exp().mean(1), log_decay.mean(1))


def token_decays(
    kernel: str, given: Mapping[str, Any], tokens: slice, num_heads: int
) -> TokenDecays | None:
    """The decays of some tokens of a step; None: this kernel lets nothing fade.

    `num_heads` is that of a layer whose kernel knows channels alone, in equal runs of them.
    """
    if kernel == "ssd":
        return HeadDecays(given["dt"][tokens].float() * given["A"].float())
    if kernel == "selective_scan":
        return ChannelDecays(given["dt"][tokens], given["A"])
    if kernel == "gated_delta_rule":
        return HeadDecays(given["g"][tokens])
    if kernel == "mlstm":
        return HeadDecays(given["log_forget"][tokens])
    if kernel == "linear_recurrence":
        decay = given["decay"][tokens]
        # A sequence's first token has 0, though there is nothing that it forgets.
        log_decay = torch.where(decay > 0, decay, 1).log()
        return HeadDecays(log_decay.unflatten(1, (num_heads, -1)))
    if kernel == "wkv":
        log_decay = given["log_decay"].view(1, num_heads, -1)
        return HeadDecays(log_decay.expand(tokens.stop - tokens.start, -1, -1))
    return None
