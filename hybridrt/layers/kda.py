"""Kimi Delta Attention (arXiv 2510.26692)."""

import torch
from jaxtyping import Float
from pydantic import NegativeFloat, PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.causal_conv1d import causal_conv1d
from hybridrt.kernels.gated_delta_rule import gated_delta_rule
from hybridrt.kernels.kda_inputs import kda_inputs
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.conv import CausalConv1d
from hybridrt.layers.linear import FusedLinear, Linear
from hybridrt.layers.norm import GatedRMSNorm
from hybridrt.values import Value


class KimiDeltaAttentionConfig(Value):
    """Sizes, as in Kimi Linear's `linear_attn_config`.

    With `low_rank_gates` what makes the decay and the output's gate goes through `head_dim`
    channels, by `f_a_proj` and `f_b_proj`, `g_a_proj` and `g_b_proj`; else there is one matrix
    for each, `f_proj` and `g_proj`. `flat_a_log` is whether A_log is `[num_heads]` and not `[1,
    1, num_heads, 1]`. A log decay is at least `decay_bound`, if there is one (Ling 3.0).
    """

    hidden_size: PositiveInt
    num_heads: PositiveInt
    head_dim: PositiveInt
    conv_kernel: PositiveInt = 4
    norm_eps: float = 1e-5
    low_rank_gates: bool = True
    flat_a_log: bool = False
    decay_bound: NegativeFloat | None = None


class KimiDeltaAttention(CachedLayer):
    """Short convolutions on q, k and v, then the delta rule with a decay for each key channel.

    A page holds the last inputs of each convolution, `q_conv_state`, `k_conv_state` and
    `v_conv_state: [conv_kernel - 1, num_heads * head_dim]`, oldest first, and `ssm_state:
    [num_heads, head_dim, head_dim]`, keys before values.
    """

    mixer = "kda"

    def __init__(self, config: KimiDeltaAttentionConfig) -> None:
        super().__init__()
        self.config = config
        heads, rank = config.num_heads, config.head_dim
        self.inner = heads * config.head_dim
        parts = dict.fromkeys(("q_proj", "k_proj", "v_proj"), self.inner)
        if config.low_rank_gates:
            parts |= {"f_a_proj": rank, "g_a_proj": rank, "b_proj": heads}
            self.f_b_proj, self.g_b_proj = (Linear(rank, self.inner) for _ in range(2))
        else:
            parts |= {"f_proj": self.inner, "g_proj": self.inner, "b_proj": heads}
        self.in_proj = FusedLinear(config.hidden_size, parts)
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (
            CausalConv1d(self.inner, config.conv_kernel, bias=False) for _ in range(3)
        )
        # Recurrences add up what rounding does to these, so they stay float32.
        self.A_log, self.dt_bias = (
            nn.Parameter(torch.empty(shape, dtype=torch.float32), requires_grad=False)
            for shape in ((heads,) if config.flat_a_log else (1, 1, heads, 1), (self.inner,))
        )
        self.o_norm = GatedRMSNorm(
            config.head_dim, config.norm_eps, 1, norm_before_gate=True, gate="sigmoid"
        )
        self.o_proj = Linear(self.inner, config.hidden_size)

    @property
    def cache_spec(self) -> CacheSpec:
        cfg = self.config
        inputs = (cfg.conv_kernel - 1, self.inner)
        convs = (State(f"{part}_conv_state", inputs, self.dtype, axes=INPUTS) for part in "qkv")
        shape, axes = (cfg.num_heads, cfg.head_dim, cfg.head_dim), ("heads", "key_dim", "value_dim")
        ssm_state = State("ssm_state", shape, self.cache_format.state_dtype, axes=axes)
        return CacheSpec("state", (*convs, ssm_state))

    def _bind(self, *views: Tensor) -> None:
        self.q_conv_state, self.k_conv_state, self.v_conv_state, self.ssm_state = views

    def forward(
        self, hidden: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        pages = batch.state_pages(self.cache_group, self.cache_part)
        initial_pages = batch.initial_state_pages(self.cache_group, self.cache_part)
        *qkv, f, z, b = self.in_proj(hidden).split(list(self.in_proj.parts.values()), dim=-1)
        if self.config.low_rank_gates:
            f, z = self.f_b_proj(f), self.g_b_proj(z)
        convs = (self.q_conv1d, self.k_conv1d, self.v_conv1d)
        states = (self.q_conv_state, self.k_conv_state, self.v_conv_state)
        q, k, v = (
            causal_conv1d(
                x,
                conv.taps,
                None,
                state,
                pages,
                initial_pages,
                batch.for_states,
                self.state_backend,
            )
            for x, conv, state in zip(qkv, convs, states, strict=True)
        )
        decays = (self.A_log.flatten(), self.dt_bias, self.config.decay_bound)
        q, k, g, beta = kda_inputs(q, k, f, b, *decays)
        y = gated_delta_rule(
            q,
            k,
            self._by_head(v),
            g,
            beta,
            self.ssm_state,
            pages,
            initial_pages,
            batch.for_states,
            self.state_backend,
        )
        return self.o_proj(self.o_norm(y, self._by_head(z)).flatten(1))

    def _by_head(self, x: Float[Tensor, "tokens inner"]) -> Float[Tensor, "tokens heads head_dim"]:
        return x.unflatten(-1, (self.config.num_heads, -1))
