"""Lightning attention (arXiv 2401.04658), as MiniMax-01 has it (arXiv 2501.08313)."""

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import CacheSpec, State
from hybridrt.kernels.ssd import ssd
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.linear import Linear
from hybridrt.layers.norm import RMSNorm
from hybridrt.values import Value

CHUNK_SIZE = 64


class LightningAttentionConfig(Value):
    """Sizes, under their Hugging Face names.

    Head h of n, counted from 1, forgets by `exp(-decay_scale * 2 ** (-8 h / n))` a token.
    In MiniMax `decay_scale` falls from 1 in the first layer to nearly 0 in the last.
    """

    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    head_dim: PositiveInt
    decay_scale: PositiveFloat = 1.0
    norm_eps: float = 1e-6


class LightningAttention(CachedLayer):
    """Linear attention: `S = decay S + v k^T`, `y = S q`, with one fixed decay a head.

    That is Mamba-2's recurrence with a step of 1, so its scan computes it. A page holds
    `kv_state: [num_attention_heads, head_dim, head_dim]`, values before keys.
    """

    mixer = "lightning"
    log_decay: Tensor

    def __init__(self, config: LightningAttentionConfig) -> None:
        super().__init__()
        self.config = config
        inner = config.num_attention_heads * config.head_dim
        self.qkv_proj = Linear(config.hidden_size, 3 * inner)
        self.output_gate = Linear(config.hidden_size, inner)
        self.norm = RMSNorm(inner, config.norm_eps)
        self.out_proj = Linear(inner, config.hidden_size)

    @property
    def cache_spec(self) -> CacheSpec:
        cfg = self.config
        shape = (cfg.num_attention_heads, cfg.head_dim, cfg.head_dim)
        dtype, axes = self.cache_format.state_dtype, ("heads", "value_dim", "key_dim")
        return CacheSpec("state", (State("kv_state", shape, dtype, axes=axes),))

    def _bind(self, *views: Tensor) -> None:
        (self.kv_state,) = views
        scale, heads = self.config.decay_scale, self.config.num_attention_heads
        log_decay = [-scale * 2 ** (-8 * h / heads) for h in range(1, heads + 1)]
        on_device = torch.tensor(log_decay, dtype=torch.float32, device=self.kv_state.device)
        self.register_buffer("log_decay", on_device, persistent=False)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        heads = self.config.num_attention_heads
        # Checkpoints keep q, k and v of a head together.
        qkv = F.silu(self.qkv_proj(hidden)).unflatten(-1, (heads, -1))
        q, k, v = qkv.chunk(3, dim=-1)
        y = ssd(
            v,
            self.log_decay.new_ones(len(v), heads),
            self.log_decay,
            k,
            q,
            torch.zeros_like(self.log_decay),
            self.kv_state,
            batch.state_pages(self.cache_group, self.cache_part),
            batch.initial_state_pages(self.cache_group, self.cache_part),
            batch.for_states,
            CHUNK_SIZE,
            self.state_backend,
        )
        return self.out_proj(torch.sigmoid(self.output_gate(hidden)) * self.norm(y.flatten(1)))
