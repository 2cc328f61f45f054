"""How fast layers forget: the decay of every token, from what a kernel is given."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

LOWEST_LOG = -87.0  # below it float32 has no decay but 0


class Decay(NamedTuple):
    """Of the tokens between two recorded positions, for each head: the mean of the decays, and
    the mean of their logarithms.
    """

    mean: Float[Tensor, " heads"]
    mean_log: Float[Tensor, " heads"]

    @property
    def half_life(self) -> Float[Tensor, " heads"]:
        """Tokens after which half is left of what stood in the state; inf where all is kept."""
        return torch.log(torch.tensor(2.0)) / -self.mean_log


class TokenDecays(ABC):
    """The decays of a step's tokens in one kernel call, summed up run by run."""

    @abstractmethod
    def sums(self, tokens: slice) -> tuple[Tensor, ...]:
        """Sums over these tokens, which can be added to those of others."""

    @abstractmethod
    def finish(self, means: tuple[Tensor, ...]) -> Decay:
        """What the means over all tokens of an interval say."""


class HeadDecays(TokenDecays):
    """One logarithm a token and head, or several a head, of which it has the mean."""

    def __init__(self, log_decay: Float[Tensor, "tokens heads *channels"]) -> None:
        with_channels = log_decay if log_decay.dim() == 3 else log_decay[..., None]
        self._log_decay = with_channels.float().clamp(min=LOWEST_LOG)

    def sums(self, tokens: slice) -> tuple[Tensor, ...]:
        logs = self._log_decay[tokens]
        return logs.exp().mean(-1).sum(0), logs.mean(-1).sum(0)

    def finish(self, means: tuple[Tensor, ...]) -> Decay:
        return Decay(*means)


class ChannelDecays(TokenDecays):
    """Mamba-1: a logarithm `dt A` for each channel and each number of its state.

    Number n of all channels counts as head n. Taking `exp` of all of them would cost as much as
    the scan, so the mean over tokens is the geometric one: `exp(A mean(dt))`.
    """

    def __init__(
        self, dt: Float[Tensor, "tokens channels"], A: Float[Tensor, "channels state_size"]
    ) -> None:
        self._dt, self._A = dt, A.float()

    def sums(self, tokens: slice) -> tuple[Tensor, ...]:
        return (self._dt[tokens].sum(0, dtype=torch.float32),)

    def finish(self, means: tuple[Tensor, ...]) -> Decay:
        log_decay = self._A * means[0][:, None]
        return Decay(log_decay.exp().mean(0), log_decay.mean(0))


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
