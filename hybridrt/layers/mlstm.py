"""The mLSTM layer (arXiv 2405.04517), as xLSTM 7B has it (arXiv 2503.13427)."""

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec, State
from hybridrt.kernels.mlstm import mlstm
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.linear import FusedLinear, Linear
from hybridrt.values import Value, check_divides


class MLSTMConfig(Value):
    """Sizes. `qk_dim` and `v_dim` are of all heads together.

    The gates of input and of forgetting are bent so that they stay below `gate_soft_cap`.
    `use_bias` is of the other projections and of the norm.
    """

    hidden_size: PositiveInt
    num_heads: PositiveInt
    qk_dim: PositiveInt
    v_dim: PositiveInt
    gate_soft_cap: PositiveFloat = 15.0
    eps: float = 1e-6
    norm_eps: float = 1e-6
    use_bias: bool = False

    @model_validator(mode="after")
    def _heads_are_alike(self) -> "MLSTMConfig":
        check_divides(self, "num_heads", "qk_dim")
        check_divides(self, "num_heads", "v_dim")
        return self


class HeadLayerNorm(nn.Module):
    """`LayerNorm` of every head by itself; weights, and a bias if any, are of all channels."""

    def __init__(self, size: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(size), requires_grad=False) if bias else None

    def forward(self, x: Float[Tensor, "tokens heads dim"]) -> Float[Tensor, "tokens size"]:
        normed = F.layer_norm(x.float(), x.shape[-1:], eps=self.eps).flatten(1) * self.weight
        return (normed if self.bias is None else normed + self.bias).to(x.dtype)


class MLSTM(CachedLayer):
    """A matrix memory for each head, with exponential gates; see `hybridrt.kernels.mlstm`.

    A page holds `memory: [num_heads, qk_dim, v_dim]` of each head's sizes, `normaliser:
    [num_heads, qk_dim]` and `peak: [num_heads]`, the logarithm of what both are divided by.
    """

    mixer = "mlstm"

    def __init__(self, config: MLSTMConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads, bias = config.hidden_size, config.num_heads, config.use_bias
        parts = {
            "q": config.qk_dim,
            "k": config.qk_dim,
            "v": config.v_dim,
            "ogate_preact": config.v_dim,
        }
        gates = {"igate_preact": heads, "fgate_preact": heads}
        self.in_proj = FusedLinear(hidden, parts, bias, fused="qkv_opreact")
        self.gates = FusedLinear(hidden, gates, True, fused="ifgate_preact")
        self.multihead_norm = HeadLayerNorm(config.v_dim, config.norm_eps, bias)
        self.out_proj = Linear(config.v_dim, hidden, bias)

    @property
    def cache_spec(self) -> CacheSpec:
        heads, dtype = self.config.num_heads, self.cache_format.state_dtype
        k_dim, v_dim = self.config.qk_dim // heads, self.config.v_dim // heads
        axes = ("heads", "key_dim", "value_dim")
        memory = State("memory", (heads, k_dim, v_dim), dtype, axes=axes)
        normaliser = State("normaliser", (heads, k_dim), dtype, axes=axes[:2])
        peak = State("peak", (heads,), torch.float32, axes=axes[:1])
        return CacheSpec("state", (memory, normaliser, peak))

    def _bind(self, *views: Tensor) -> None:
        self.memory, self.normaliser, self.peak = views

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        cfg = self.config
        q, k, v, gate = self.in_proj(x).split(list(self.in_proj.parts.values()), dim=-1)
        q, k, v = (part.unflatten(-1, (cfg.num_heads, -1)) for part in (q, k, v))
        bent = cfg.gate_soft_cap * torch.tanh(self.gates(x).float() / cfg.gate_soft_cap)
        log_input, forget = bent.chunk(2, dim=-1)
        y = mlstm(
            q * q.shape[-1] ** -0.5,
            k,
            v,
            log_input,
            F.logsigmoid(forget),
            self.memory,
            self.normaliser,
            self.peak,
            batch.state_pages(self.cache_group, self.cache_part),
            batch.initial_state_pages(self.cache_group, self.cache_part),
            batch.for_states,
            cfg.eps,
        )
        return self.out_proj(torch.sigmoid(gate) * self.multihead_norm(y))
