"""Sparse MLA with a gate on its output: of Hy4, with sinks in its softmax, and of A.X-K2."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.gated import sigmoid_gated
from hybridrt.layers.indexer import Indexer, IndexerConfig
from hybridrt.layers.linear import Linear
from hybridrt.layers.mla import MLAConfig
from hybridrt.layers.rope import Rope
from hybridrt.layers.sparse_mla import SparseMLA


class TailRotatedIndexer(Indexer):
    """An indexer of whose heads the last part is rotated. Keys are normed in float32."""

    def __init__(self, config: IndexerConfig, rope: Rope, norm_eps: float) -> None:
        super().__init__(config, rope)
        self.k_norm = nn.LayerNorm(config.index_head_dim, eps=norm_eps, dtype=torch.float32)

    def _rotate(
        self, heads: Float[Tensor, "tokens heads dim"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads dim"]:
        assert self.rope is not None
        still, turned = heads.tensor_split([-self.rope.dim], dim=-1)
        return torch.cat([still, self.rope.apply(turned, batch.rope_positions)], dim=-1)

    def _keys(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens dim"]:
        return self.k_norm(self.wk(x).float()).to(x.dtype)


class GatedSparseMLA(SparseMLA):
    """`o_proj(attention * sigmoid(gate_proj(x)))`, each head with a sink.

    What is cached is what `SparseMLA` caches.
    """

    def __init__(self, config: MLAConfig, rope: Rope, indexer: Indexer | None) -> None:
        super().__init__(config, rope, indexer)
        heads = config.num_attention_heads
        self.gate_proj = Linear(config.hidden_size, heads * config.v_head_dim)
        self.sinks = nn.Parameter(torch.empty(heads, dtype=torch.float32), requires_grad=False)

    def _output(
        self,
        attended: Float[Tensor, "tokens heads v_dim"],
        x: Float[Tensor, "tokens hidden"],
        query_input: Float[Tensor, "tokens query_input"],
    ) -> Float[Tensor, "tokens hidden"]:
        return self.o_proj(sigmoid_gated(attended.flatten(1), self.gate_proj(x)))


class LatentGatedSparseMLA(SparseMLA):
    """`o_proj(attention * sigmoid(gate))`, the gate beside each head's queries in `q_b_proj`.

    That reads the queries' latent both normed and as it is (A.X-K2). What is cached is what
    `SparseMLA` caches.
    """

    def __init__(self, config: MLAConfig, rope: Rope, indexer: "LatentIndexer") -> None:
        super().__init__(config, rope, indexer)
        assert config.q_lora_rank is not None
        self.query_size = config.qk_nope_head_dim + config.qk_rope_head_dim
        outputs = config.num_attention_heads * (self.query_size + config.v_head_dim)
        self.q_b_proj = Linear(2 * config.q_lora_rank, outputs)

    def _query_input(
        self, x: Float[Tensor, "tokens hidden"]
    ) -> Float[Tensor, "tokens query_input"]:
        """The normed latent, for the indexer, and behind it what `q_b_proj` gives."""
        latent = self.q_a_proj(x)
        normed = self.q_a_layernorm(latent)
        return torch.cat([normed, self.q_b_proj(torch.cat([normed, latent], dim=-1))], dim=-1)

    def _project_queries(
        self, query_input: Float[Tensor, "tokens query_input"]
    ) -> Float[Tensor, "tokens heads qk_dim"]:
        return self._queries_and_gates(query_input)[..., : self.query_size]

    def _output(
        self,
        attended: Float[Tensor, "tokens heads v_dim"],
        x: Float[Tensor, "tokens hidden"],
        query_input: Float[Tensor, "tokens query_input"],
    ) -> Float[Tensor, "tokens hidden"]:
        gates = self._queries_and_gates(query_input)[..., self.query_size :]
        return self.o_proj(sigmoid_gated(attended.flatten(1), gates.flatten(1)))

    def _queries_and_gates(
        self, query_input: Float[Tensor, "tokens query_input"]
    ) -> Float[Tensor, "tokens heads qk_and_v_dim"]:
        _, both = query_input.tensor_split([self.config.q_lora_rank or 0], dim=-1)
        return both.unflatten(-1, (self.config.num_attention_heads, -1))


class LatentIndexer(Indexer):
    """An indexer that finds its queries' latent at the head of what it gets."""

    def _queries(
        self, query_input: Float[Tensor, "tokens query_input"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads dim"]:
        return super()._queries(query_input[:, : self.config.query_input_size], batch)
