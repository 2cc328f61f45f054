"""Attention whose output each token gates (arXiv 2505.06708)."""

import torch
from jaxtyping import Float
from torch import Tensor

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.gated import sigmoid_gated
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.linear import FusedLinear, Linear, by_kind
from hybridrt.layers.mla import MLA, MLAConfig
from hybridrt.layers.rope import Rope


class GatedAttention(Attention):
    """`o_proj(attention * sigmoid(gate))`, the gate beside each head's queries in `q_proj`.

    As in Qwen3-Next. What is cached is what `Attention` caches.
    """

    def __init__(self, config: AttentionConfig, rope: Rope | None) -> None:
        super().__init__(config, rope)
        if config.value_dim != config.head_dim:
            raise ValueError(f"head_dim_v={config.head_dim_v} should be None: a gate is a query's")
        heads, head_dim = config.num_attention_heads, config.head_dim
        kv_size = config.num_key_value_heads * head_dim
        self.q_size = heads * head_dim
        parts = {"q_proj": 2 * self.q_size, "k_proj": kv_size, "v_proj": kv_size}
        queries, gates = by_kind(heads, [head_dim, head_dim]).chunk(2)
        kv = torch.arange(2 * self.q_size, 2 * (self.q_size + kv_size), device="cpu")
        order = torch.cat([queries, kv, gates])
        self.qkv_proj = FusedLinear(config.hidden_size, parts, config.attention_bias, order=order)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        q, k, v, gate = self._project_gated(x, batch)
        out = self.update_and_attend((q,), (k, v), batch)
        return self.o_proj(sigmoid_gated(out.flatten(1), gate.flatten(1)))

    def _project_gated(self, x: Tensor, batch: ForwardBatch) -> tuple[Tensor, ...]:
        """Queries, keys, values and the queries' gates, `[tokens, heads, head_dim]` each."""
        qkv, gate = self.qkv_proj(x).tensor_split([-self.q_size], dim=-1)
        return *self._heads(qkv, batch), gate.unflatten(-1, (-1, self.config.head_dim))


class HeadGatedAttention(Attention):
    """`o_proj(attention * sigmoid(g_proj(x)))`, with one gate a head, as in LFM3.

    What is cached is what `Attention` caches.
    """

    def __init__(self, config: AttentionConfig, rope: Rope | None) -> None:
        super().__init__(config, rope)
        self.g_proj = Linear(config.hidden_size, config.num_attention_heads)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        q, k, v = self._project(x, batch)
        out = self.update_and_attend((q,), (k, v), batch)
        return self.o_proj(sigmoid_gated(out, self.g_proj(x)[..., None]).flatten(1))


class GatedMLA(MLA):
    """`o_proj(attention * sigmoid(g_proj(x)))`, with one gate a head, as in Ling 3.0.

    What is cached is what `MLA` caches.
    """

    def __init__(self, config: MLAConfig, rope: Rope | None) -> None:
        super().__init__(config, rope)
        self.g_proj = Linear(config.hidden_size, config.num_attention_heads)

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        queries, new_tokens = self._project(x, self._query_input(x), batch)
        out = self.update_and_attend(queries, new_tokens, batch)
        return self.o_proj(sigmoid_gated(out, self.g_proj(x)[..., None]).flatten(1))
