"""The Gated DeltaNet mixer (arXiv 2412.06464), as Qwen3-Next has it."""

from typing import Literal

import torch
from jaxtyping import Float, Int64
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.causal_conv1d import causal_conv1d
from hybridrt.kernels.delta_inputs import delta_inputs
from hybridrt.kernels.gated_delta_rule import gated_delta_rule
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.conv import CausalConv1d, FusedCausalConv1d
from hybridrt.layers.linear import FusedLinear, Linear, by_kind
from hybridrt.layers.norm import GatedRMSNorm
from hybridrt.values import Value, check_divides

Projections = Literal["by_key_head", "by_kind", "apart"]


class GatedDeltaNetConfig(Value):
    """Sizes. Qwen3-Next's names have `linear_` before them.

    `projections` is how a checkpoint has those of the input: Qwen3-Next's `in_proj_qkvz` and
    `in_proj_ba`, whose rows are sorted `by_key_head`, or one matrix `by_kind`, as Qwen3.5's
    `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`; or each `apart`, as OLMo Hybrid's
    `q_proj`, `k_proj`, `v_proj`, `g_proj`, `b_proj` and `a_proj`, and so the convolutions.
    `allow_neg_eigval` lets beta, how much of a value is corrected, reach 2 (arXiv 2411.12537).
    `output_gate` is the function of the output's gate.
    """

    hidden_size: PositiveInt
    num_key_heads: PositiveInt
    num_value_heads: PositiveInt
    key_head_dim: PositiveInt
    value_head_dim: PositiveInt
    conv_kernel: PositiveInt = 4
    norm_eps: float = 1e-6
    projections: Projections = "by_key_head"
    allow_neg_eigval: bool = False
    output_gate: Literal["silu", "sigmoid"] = "silu"

    @model_validator(mode="after")
    def _value_heads_share_keys(self) -> "GatedDeltaNetConfig":
        check_divides(self, "num_key_heads", "num_value_heads")
        return self


class GatedDeltaNet(CachedLayer):
    """A short convolution over q, k and v, then the delta rule with one decay a head.

    A page holds the convolution's last inputs, `conv_state: [conv_kernel - 1, channels of
    q, k and v]`, oldest first, and `ssm_state: [num_value_heads, key_head_dim,
    value_head_dim]`.
    """

    mixer = "gated_delta_net"

    def __init__(self, config: GatedDeltaNetConfig) -> None:
        super().__init__()
        self.config = config
        heads = config.num_value_heads
        self.key_dim = config.num_key_heads * config.key_head_dim
        self.value_dim = heads * config.value_head_dim
        self._beta_scale = 2.0 if config.allow_neg_eigval else 1.0
        self.conv_channels = 2 * self.key_dim + self.value_dim
        self.in_proj = FusedLinear(config.hidden_size, self._projections(), order=self._order())
        if config.projections == "apart":
            parts = {"q_conv1d": self.key_dim, "k_conv1d": self.key_dim, "v_conv1d": self.value_dim}
            self.conv1d = FusedCausalConv1d(parts, config.conv_kernel, bias=False)
        else:
            self.conv1d = CausalConv1d(self.conv_channels, config.conv_kernel, bias=False)
        # Recurrences add up what rounding does to these, so they stay float32.
        self.A_log, self.dt_bias = (
            nn.Parameter(torch.empty(heads, dtype=torch.float32), requires_grad=False)
            for _ in range(2)
        )
        size, eps, gate = config.value_head_dim, config.norm_eps, config.output_gate
        self.norm = GatedRMSNorm(size, eps, 1, norm_before_gate=True, gate=gate)
        self.out_proj = Linear(self.value_dim, config.hidden_size)

    def _projections(self) -> dict[str, int]:
        """The checkpoint's projections of the input and their outputs."""
        heads, channels, values = self.config.num_value_heads, self.conv_channels, self.value_dim
        if self.config.projections == "by_key_head":
            return {"in_proj_qkvz": channels + values, "in_proj_ba": 2 * heads}
        if self.config.projections == "by_kind":
            qkvz = {"in_proj_qkv": channels, "in_proj_z": values}
            return qkvz | {"in_proj_b": heads, "in_proj_a": heads}
        qkv = {"q_proj": self.key_dim, "k_proj": self.key_dim, "v_proj": values}
        return qkv | {"g_proj": values, "b_proj": heads, "a_proj": heads}

    def _order(self) -> Int64[Tensor, " rows"] | None:
        """Sorts rows that a checkpoint has by key head, with those of its value heads, by kind."""
        cfg = self.config
        if cfg.projections != "by_key_head":
            return None
        shared = cfg.num_value_heads // cfg.num_key_heads
        values = shared * cfg.value_head_dim
        qkvz = by_kind(cfg.num_key_heads, [cfg.key_head_dim, cfg.key_head_dim, values, values])
        return torch.cat([qkvz, len(qkvz) + by_kind(cfg.num_key_heads, [shared, shared])])

    @property
    def cache_spec(self) -> CacheSpec:
        cfg = self.config
        inputs = (cfg.conv_kernel - 1, self.conv_channels)
        conv_state = State("conv_state", inputs, self.dtype, axes=INPUTS)
        shape = (cfg.num_value_heads, cfg.key_head_dim, cfg.value_head_dim)
        axes = ("heads", "key_dim", "value_dim")
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
        qkv, z, b, a = self._project(hidden)
        qkv = causal_conv1d(
            qkv,
            self.conv1d.taps,
            None,
            self.conv_state,
            pages,
            initial_pages,
            batch.for_states,
            self.state_backend,
        )
        qk, v = qkv.split([2 * self.key_dim, self.value_dim], dim=-1)
        q, k, g, beta = delta_inputs(
            qk, a, b, self.A_log, self.dt_bias, cfg.num_key_heads, self._beta_scale
        )
        y = gated_delta_rule(
            q,
            k,
            v.unflatten(-1, (cfg.num_value_heads, -1)),
            g,
            beta,
            self.ssm_state,
            pages,
            initial_pages,
            batch.for_states,
            self.state_backend,
        )
        return self.out_proj(self.norm(y, z).flatten(1))

    def _project(self, hidden: Float[Tensor, "tokens hidden"]) -> tuple[Tensor, ...]:
        """q, k and v side by side, then by value head the gate z, and what makes beta and g."""
        cfg = self.config
        sizes = [self.conv_channels, self.value_dim, cfg.num_value_heads, cfg.num_value_heads]
        qkv, z, b, a = self.in_proj(hidden).split(sizes, dim=-1)
        return qkv, z.unflatten(-1, (cfg.num_value_heads, -1)), b, a
