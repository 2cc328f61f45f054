"""The Mamba-2 mixer (arXiv 2405.21060)."""

from math import inf
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import BeforeValidator, PositiveInt, model_validator
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.causal_conv1d import causal_conv1d
from hybridrt.kernels.gated import gated_by
from hybridrt.kernels.scan_inputs import scan_inputs
from hybridrt.kernels.ssd import ssd
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.conv import CausalConv1d
from hybridrt.layers.linear import Linear
from hybridrt.layers.norm import GatedRMSNorm
from hybridrt.values import Value, check_divides

Limits = Annotated[
    tuple[float, float], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)
]
"""`[lowest, highest]`, as JSON has it."""


class Mamba2Config(Value):
    """Sizes, under their Hugging Face names.

    Attributes:
        time_step_limit: clamps dt.
        output_bias: of `out_proj`; None: as `use_bias`.
        gated_norm: what the recurrence gives is normed beside its gate; without, it is only
            multiplied by the gate.
        multipliers: of z, x, B, C and dt, as they come out of `in_proj`.
    """

    hidden_size: PositiveInt
    num_heads: PositiveInt
    head_dim: PositiveInt
    state_size: PositiveInt
    n_groups: PositiveInt = 1
    conv_kernel: PositiveInt = 4
    chunk_size: PositiveInt = 256
    use_bias: bool = False
    output_bias: bool | None = None
    use_conv_bias: bool = True
    time_step_limit: Limits = (0.0, inf)
    norm_eps: float = 1e-5
    norm_before_gate: bool = False
    gated_norm: bool = True
    multipliers: tuple[float, float, float, float, float] | None = None

    @model_validator(mode="after")
    def _heads_share_groups(self) -> "Mamba2Config":
        check_divides(self, "n_groups", "num_heads")
        return self


class Mamba2(CachedLayer):
    """A short convolution over x, B and C, then a recurrence with one decay a head.

    A page holds the convolution's last inputs, `conv_state: [conv_kernel - 1,
    conv_channels]`, oldest first, and `ssm_state: [num_heads, head_dim, state_size]`.
    """

    mixer = "mamba2"
    multipliers: Tensor | None

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.config = config
        self.inner = config.num_heads * config.head_dim
        self.conv_channels = self.inner + 2 * config.n_groups * config.state_size
        outputs = self.inner + self.conv_channels + config.num_heads
        self.in_proj = Linear(config.hidden_size, outputs, config.use_bias)
        self.conv1d = CausalConv1d(self.conv_channels, config.conv_kernel, config.use_conv_bias)
        # Recurrences add up what rounding does to these, so they stay float32.
        self.A_log, self.D, self.dt_bias = (
            nn.Parameter(torch.empty(config.num_heads, dtype=torch.float32), requires_grad=False)
            for _ in range(3)
        )
        if config.gated_norm:
            self.norm = GatedRMSNorm(
                self.inner, config.norm_eps, config.n_groups, config.norm_before_gate
            )
        output_bias = config.use_bias if config.output_bias is None else config.output_bias
        self.out_proj = Linear(self.inner, config.hidden_size, output_bias)
        self.register_buffer("multipliers", self._multipliers(), persistent=False)

    def _multipliers(self) -> Float[Tensor, " outputs"] | None:
        """One a feature of `in_proj`. No checkpoint fills it, so it is made here, never on meta."""
        cfg = self.config
        if cfg.multipliers is None:
            return None
        group_size = cfg.n_groups * cfg.state_size
        sizes = (self.inner, self.inner, group_size, group_size, cfg.num_heads)
        parts = zip(cfg.multipliers, sizes, strict=True)
        return torch.cat([torch.full((size,), value, device="cpu") for value, size in parts])

    @property
    def cache_spec(self) -> CacheSpec:
        cfg = self.config
        inputs = (cfg.conv_kernel - 1, self.conv_channels)
        conv_state = State("conv_state", inputs, self.dtype, axes=INPUTS)
        shape, axes = (
            (cfg.num_heads, cfg.head_dim, cfg.state_size),
            ("heads", "head_dim", "state_size"),
        )
        ssm_state = State("ssm_state", shape, self.cache_format.state_dtype, axes=axes)
        return CacheSpec("state", (conv_state, ssm_state))

    def _bind(self, *views: Tensor) -> None:
        self.conv_state, self.ssm_state = views

    def forward(
        self, hidden: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        cfg = self.config
        pages = batch.state_pages(self.cache_group, self.cache_part)
        initial_pages = batch.initial_state_pages(self.cache_group, self.cache_part)
        sizes = [self.inner, self.conv_channels, cfg.num_heads]
        projected = self.in_proj(hidden)
        if self.multipliers is not None:
            projected = projected * self.multipliers
        z, xBC, dt = projected.split(sizes, dim=-1)
        xBC = causal_conv1d(
            xBC,
            self.conv1d.taps,
            self.conv1d.bias,
            self.conv_state,
            pages,
            initial_pages,
            batch.for_states,
            self.state_backend,
        )
        group_size = cfg.n_groups * cfg.state_size
        x, B, C = xBC.split([self.inner, group_size, group_size], dim=-1)
        steps, A = scan_inputs(dt, self.dt_bias, self.A_log, cfg.time_step_limit)
        y = ssd(
            x.unflatten(-1, (cfg.num_heads, -1)),
            steps,
            A,
            B.unflatten(-1, (cfg.n_groups, -1)),
            C.unflatten(-1, (cfg.n_groups, -1)),
            self.D,
            self.ssm_state,
            pages,
            initial_pages,
            batch.for_states,
            cfg.chunk_size,
            self.state_backend,
        )
        y = y.flatten(1)
        return self.out_proj(self.norm(y, z) if cfg.gated_norm else gated_by(y, z))
