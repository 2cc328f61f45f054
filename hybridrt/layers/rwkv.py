"""The two layers of RWKV-4 (arXiv 2305.13048): each mixes a token with the one before it."""

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.recent_inputs import recent_inputs
from hybridrt.kernels.wkv import wkv
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.linear import Linear


class TokenShift(CachedLayer):
    """Inputs that are part the token's own, part the last one's, in a share for each channel.

    A page holds `last_input: [1, hidden_size]`, in the model's dtype. `parts` names the mixtures,
    whose shares are `time_mix_<part>: [1, 1, hidden_size]`.
    """

    def __init__(self, hidden_size: PositiveInt, parts: tuple[str, ...]) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        for part in parts:
            share = nn.Parameter(torch.empty(1, 1, hidden_size), requires_grad=False)
            self.register_parameter(f"time_mix_{part}", share)
        self.shares = tuple(f"time_mix_{part}" for part in parts)

    @property
    def cache_spec(self) -> CacheSpec:
        return CacheSpec(
            "state", (State("last_input", (1, self.hidden_size), self.dtype, axes=INPUTS),)
        )

    def _bind(self, *views: Tensor) -> None:
        self.last_input = views[0]

    def _mix(self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch) -> list[Tensor]:
        """A mixture for every part."""
        last, own = recent_inputs(
            x,
            self.last_input,
            batch.state_pages(self.cache_group, self.cache_part),
            batch.initial_state_pages(self.cache_group, self.cache_part),
            batch.for_states,
        ).unbind(1)
        shares = (self.get_parameter(name)[0] for name in self.shares)
        return [own * share + last * (1 - share) for share in shares]


class TimeMix(TokenShift):
    """`output(sigmoid(receptance) * wkv)`; see `hybridrt.kernels.wkv`.

    Beside the last input a page holds `numerator`, `denominator` and `peak`, a number a channel.
    """

    mixer = "rwkv"

    def __init__(self, hidden_size: PositiveInt, inner: PositiveInt) -> None:
        super().__init__(hidden_size, ("key", "value", "receptance"))
        self.inner = inner
        self.time_decay, self.time_first = (
            nn.Parameter(torch.empty(inner, dtype=torch.float32), requires_grad=False)
            for _ in range(2)
        )
        self.key, self.value, self.receptance = (Linear(hidden_size, inner) for _ in range(3))
        self.output = Linear(inner, hidden_size)

    @property
    def cache_spec(self) -> CacheSpec:
        dtype, shape = self.cache_format.state_dtype, (self.inner,)
        sums = (
            State(name, shape, dtype, axes=("channels",)) for name in ("numerator", "denominator")
        )
        peak = State("peak", shape, torch.float32, axes=("channels",))
        return CacheSpec("state", (*super().cache_spec.states, *sums, peak))

    def _bind(self, *views: Tensor) -> None:
        self.last_input, self.numerator, self.denominator, self.peak = views

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        of_k, of_v, of_r = self._mix(x, batch)
        means = wkv(
            self.key(of_k),
            self.value(of_v),
            -torch.exp(self.time_decay),
            self.time_first,
            self.numerator,
            self.denominator,
            self.peak,
            batch.state_pages(self.cache_group, self.cache_part),
            batch.initial_state_pages(self.cache_group, self.cache_part),
            batch.for_states,
        )
        return self.output(torch.sigmoid(self.receptance(of_r)) * means)


class ChannelMix(TokenShift):
    """`sigmoid(receptance) * value(relu(key)^2)`: a feed-forward layer that remembers a token."""

    mixer = "token_shift"

    def __init__(self, hidden_size: PositiveInt, inner: PositiveInt) -> None:
        super().__init__(hidden_size, ("key", "receptance"))
        self.key, self.value = Linear(hidden_size, inner), Linear(inner, hidden_size)
        self.receptance = Linear(hidden_size, hidden_size)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        of_k, of_r = self._mix(x, batch)
        inner = torch.relu(self.key(of_k)).square()
        return torch.sigmoid(self.receptance(of_r)) * self.value(inner)
