"""The lightning indexer of DeepSeek sparse attention (DeepSeek-V3.2, arXiv 2512.02556)."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float32
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.layers.linear import Linear
from hybridrt.layers.rope import Rope
from hybridrt.values import Value


class IndexerConfig(Value):
    """Sizes, under their Hugging Face names; queries are projected from `query_input_size`."""

    hidden_size: PositiveInt
    query_input_size: PositiveInt
    index_n_heads: PositiveInt
    index_head_dim: PositiveInt
    index_topk: PositiveInt


class IndexHeads(NamedTuple):
    """Queries and how much each of their heads counts, and the keys to be cached."""

    queries: Float[Tensor, "tokens heads dim"]
    weights: Float32[Tensor, "tokens heads"]
    keys: Float[Tensor, "tokens dim"]


class Indexer(nn.Module):
    """Small heads that score every earlier token for each new one, so that the best are picked.

    Keys are one head, which the layer caches. What a head finds is weighted by the token that
    looks; see `hybridrt.kernels.select_tokens`. Without a rope there are no positions.
    """

    caches_its_keys = False

    def __init__(self, config: IndexerConfig, rope: Rope | None) -> None:
        super().__init__()
        self.config = config
        self.rope = rope
        heads, dim = config.index_n_heads, config.index_head_dim
        self.wq_b = Linear(config.query_input_size, heads * dim)
        self.wk = Linear(config.hidden_size, dim)
        self.k_norm = nn.LayerNorm(dim, eps=1e-6)
        self.weights_proj = HeadWeights(config.hidden_size, heads)

    def forward(
        self,
        x: Float[Tensor, "tokens hidden"],
        query_input: Float[Tensor, "tokens query_input"],
        batch: ForwardBatch,
    ) -> IndexHeads:
        """What the new tokens look for, and what they are found by."""
        cfg = self.config
        heads = torch.cat([self._queries(query_input, batch), self._keys(x)[:, None]], dim=1)
        heads = self._rotate(heads, batch)
        queries, keys = heads.tensor_split([-1], dim=1)
        weights = self.weights_proj(x) * (cfg.index_n_heads * cfg.index_head_dim) ** -0.5
        return IndexHeads(queries, weights, keys[:, 0])

    def _queries(
        self, query_input: Float[Tensor, "tokens query_input"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads dim"]:
        return self.wq_b(query_input).unflatten(-1, (self.config.index_n_heads, -1))

    def _rotate(
        self, heads: Float[Tensor, "tokens heads dim"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads dim"]:
        return heads if self.rope is None else self.rope.apply(heads, batch.rope_positions)

    def _keys(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens dim"]:
        return self.k_norm(self.wk(x))


class HeadWeights(nn.Module):
    """How much each head of an indexer counts for a token, in float32 whatever the model is in."""

    def __init__(self, hidden_size: int, heads: int) -> None:
        super().__init__()
        weight = torch.empty(heads, hidden_size, dtype=torch.float32)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float32[Tensor, "tokens heads"]:
        return F.linear(x.float(), self.weight)
