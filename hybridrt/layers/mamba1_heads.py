"""Mamba-1 in several heads (Zamba, arXiv 2405.16712)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.causal_conv1d import causal_conv1d
from hybridrt.kernels.gated import gated_by
from hybridrt.kernels.scan_inputs import scan_inputs
from hybridrt.kernels.selective_scan import selective_scan
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.conv import CausalConv1d
from hybridrt.layers.linear import Linear
from hybridrt.layers.mamba1 import Mamba1Config


class Mamba1Heads(CachedLayer):
    """Mamba-1 whose channels are split into heads, each with a dt, B and C of its own.

    `config.time_step_rank` is a head's. Of what `in_proj` gives, x and z take turns. A page
    holds the convolution's last inputs, `conv_state: [conv_kernel - 1, intermediate_size]`,
    oldest first, and `ssm_state: [intermediate_size, state_size]`, head after head.

    Raises:
        ValueError: the heads can't be of one size.
    """

    mixer = "mamba1"

    def __init__(self, config: Mamba1Config, num_heads: int) -> None:
        super().__init__()
        inner, state, rank = config.intermediate_size, config.state_size, config.time_step_rank
        if inner % num_heads:
            raise ValueError(f"num_heads={num_heads} should divide intermediate_size={inner}")
        self.config, self.num_heads, self.head_dim = config, num_heads, inner // num_heads
        self.in_proj = Linear(config.hidden_size, 2 * inner, config.use_bias)
        self.conv1d = CausalConv1d(inner, config.conv_kernel, config.use_conv_bias)
        self.x_proj_weight = self._empty(rank + 2 * state, self.head_dim)
        self.dt_proj_weight = self._empty(self.head_dim, rank)
        self.dt_proj_bias = self._empty(self.head_dim)
        # Recurrences add up what rounding does to these, so they stay float32.
        self.A_log = self._empty(self.head_dim, state, dtype=torch.float32)
        self.D = self._empty(self.head_dim, dtype=torch.float32)
        self.out_proj = Linear(inner, config.hidden_size, config.use_bias)

    def _empty(self, *shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
        return nn.Parameter(torch.empty(self.num_heads, *shape, dtype=dtype), requires_grad=False)

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
        self.head_states = self.ssm_state.split(self.head_dim, dim=1)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        x, z = self.in_proj(hidden).unflatten(-1, (-1, 2)).unbind(-1)
        x = causal_conv1d(
            x.contiguous(),
            self.conv1d.taps,
            self.conv1d.bias,
            self.conv_state,
            batch.state_pages(self.cache_group, self.cache_part),
            batch.initial_state_pages(self.cache_group, self.cache_part),
            batch.for_states,
            self.state_backend,
        )
        parts = enumerate(x.split(self.head_dim, dim=-1))
        y = torch.cat([self._scan(head, part.contiguous(), batch) for head, part in parts], dim=-1)
        return self.out_proj(gated_by(y, z))

    def _scan(
        self, head: int, x: Float[Tensor, "tokens head_dim"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens head_dim"]:
        """The recurrence of one head."""
        cfg = self.config
        sizes = [cfg.time_step_rank, cfg.state_size, cfg.state_size]
        dt, B, C = F.linear(x, self.x_proj_weight[head]).split(sizes, dim=-1)
        dt = F.linear(dt, self.dt_proj_weight[head])
        steps, A = scan_inputs(dt, self.dt_proj_bias[head], self.A_log[head])
        return selective_scan(
            x,
            steps,
            A,
            B,
            C,
            self.D[head],
            self.head_states[head],
            batch.state_pages(self.cache_group, self.cache_part),
            batch.initial_state_pages(self.cache_group, self.cache_part),
            batch.for_states,
            self.state_backend,
        )
