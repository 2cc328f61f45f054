"""The Mamba-1 mixer (arXiv 2312.00752)."""

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.causal_conv1d import causal_conv1d
from hybridrt.kernels.gated import gated_by
from hybridrt.kernels.rms_norm import rms_norm_three
from hybridrt.kernels.scan_inputs import scan_inputs
from hybridrt.kernels.selective_scan import selective_scan
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.conv import CausalConv1d
from hybridrt.layers.linear import Linear
from hybridrt.layers.norm import RMSNorm, plain_offset
from hybridrt.values import Value


class Mamba1Config(Value):
    """Sizes, under their Hugging Face names.

    `inner_norm_eps` norms dt, B and C before they are used (Jamba, arXiv 2408.12570),
    with learned weights or without (Falcon Mamba, arXiv 2410.05355).
    """

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    state_size: PositiveInt
    conv_kernel: PositiveInt = 4
    time_step_rank: PositiveInt
    use_bias: bool = False
    use_conv_bias: bool = True
    inner_norm_eps: float | None = None
    inner_norm_weights: bool = True


class Mamba1(CachedLayer):
    """A short convolution, then a recurrence whose step, input and output depend on the input.

    A page holds the convolution's last inputs, `conv_state: [conv_kernel - 1,
    intermediate_size]`, oldest first, and `ssm_state: [intermediate_size, state_size]`.
    """

    mixer = "mamba1"

    def __init__(self, config: Mamba1Config) -> None:
        super().__init__()
        self.config = config
        hidden, inner, state = config.hidden_size, config.intermediate_size, config.state_size
        rank = config.time_step_rank
        self.in_proj = Linear(hidden, 2 * inner, config.use_bias)
        self.conv1d = CausalConv1d(inner, config.conv_kernel, config.use_conv_bias)
        self.x_proj = Linear(inner, rank + 2 * state)
        self.dt_proj = Linear(rank, inner, bias=True)
        # Recurrences add up what rounding does to these, so they stay float32.
        self.A_log = nn.Parameter(
            torch.empty(inner, state, dtype=torch.float32), requires_grad=False
        )
        self.D = nn.Parameter(torch.empty(inner, dtype=torch.float32), requires_grad=False)
        self.out_proj = Linear(inner, hidden, config.use_bias)
        if config.inner_norm_eps is not None and config.inner_norm_weights:
            self.dt_layernorm = RMSNorm(rank, config.inner_norm_eps)
            self.b_layernorm = RMSNorm(state, config.inner_norm_eps)
            self.c_layernorm = RMSNorm(state, config.inner_norm_eps)

    @property
    def cache_spec(self) -> CacheSpec:
        cfg = self.config
        inputs = (cfg.conv_kernel - 1, cfg.intermediate_size)
        conv_state = State("conv_state", inputs, self.dtype, axes=INPUTS)
        shape, axes = (cfg.intermediate_size, cfg.state_size), ("channels", "state_size")
        ssm_state = State("ssm_state", shape, self.cache_format.state_dtype, axes=axes)
        return CacheSpec("state", (conv_state, ssm_state))

    def _bind(self, *views: Tensor) -> None:
        self.conv_state, self.ssm_state = views

    def forward(
        self, hidden: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        pages = batch.state_pages(self.cache_group, self.cache_part)
        initial_pages = batch.initial_state_pages(self.cache_group, self.cache_part)
        x, z = self.in_proj(hidden).chunk(2, dim=-1)
        x = causal_conv1d(
            x,
            self.conv1d.taps,
            self.conv1d.bias,
            self.conv_state,
            pages,
            initial_pages,
            batch.for_states,
            self.state_backend,
        )
        dt, B, C = self._select(x)
        steps, A = scan_inputs(dt, None, self.A_log)
        y = selective_scan(
            x,
            steps,
            A,
            B,
            C,
            self.D,
            self.ssm_state,
            pages,
            initial_pages,
            batch.for_states,
            self.state_backend,
        )
        return self.out_proj(gated_by(y, z))

    def _select(self, x: Float[Tensor, "tokens inner"]) -> tuple[Tensor, Tensor, Tensor]:
        """What makes the step of each channel, and the token's B and C."""
        cfg = self.config
        sizes = [cfg.time_step_rank, cfg.state_size, cfg.state_size]
        dt, B, C = self.x_proj(x).split(sizes, dim=-1)
        if cfg.inner_norm_eps is not None and cfg.inner_norm_weights:
            norms = (self.dt_layernorm, self.b_layernorm, self.c_layernorm)
            if all(plain_offset(norm) == 0.0 for norm in norms):
                weights = [norm.weight for norm in norms]
                dt, B, C = rms_norm_three((dt, B, C), weights, cfg.inner_norm_eps)
            else:
                dt, B, C = (norm(part) for norm, part in zip(norms, (dt, B, C), strict=True))
        elif cfg.inner_norm_eps is not None:
            eps = cfg.inner_norm_eps
            dt, B, C = (F.rms_norm(part, part.shape[-1:], eps=eps) for part in (dt, B, C))
        return self.dt_proj(dt), B, C
