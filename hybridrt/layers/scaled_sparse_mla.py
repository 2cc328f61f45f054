"""Sparse MLA whose queries grow with the logarithm of their position (Mistral Large 4).

With n tokens in view a softmax spreads; a factor of `scale * log(n) + bias`, learned for each
head, keeps it as sharp as it should be (Scalable-Softmax, arXiv 2501.19399).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.indexer import Indexer, IndexerConfig
from hybridrt.layers.mla import MLAConfig
from hybridrt.layers.rope import Rope
from hybridrt.layers.sparse_mla import SparseMLA


class SoftmaxScaling(nn.Module):
    """`scale * log(position + 1) + bias` of each head, by which its queries are multiplied."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(num_heads), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(num_heads), requires_grad=False)

    def forward(
        self, q: Float[Tensor, "tokens heads dim"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads dim"]:
        length = torch.log1p(batch.positions.float())[:, None]
        factors = self.scale.float() * length + self.bias.float()
        return q * factors[..., None].to(q.dtype)


class ScaledIndexer(Indexer):
    """An indexer whose queries come from the normed stream, and are scaled."""

    def __init__(self, config: IndexerConfig, rope: Rope | None) -> None:
        super().__init__(config, rope)
        self.q_input_norm = nn.LayerNorm(config.query_input_size, eps=1e-6)
        self.softmax_scaling = SoftmaxScaling(config.index_n_heads)

    def _queries(
        self, query_input: Float[Tensor, "tokens query_input"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads dim"]:
        queries = super()._queries(self.q_input_norm(query_input), batch)
        return self.softmax_scaling(queries, batch)


class ScaledSparseMLA(SparseMLA):
    """Sparse MLA whose queries are scaled."""

    def __init__(
        self,
        config: MLAConfig,
        rope: Rope,
        indexer: ScaledIndexer | None,
        shares_latents_of: SparseMLA | None = None,
    ) -> None:
        super().__init__(config, rope, indexer, shares_latents_of)
        self.softmax_scaling = SoftmaxScaling(config.num_attention_heads)

    def _scaled(
        self, queries: Float[Tensor, "tokens heads qk_dim"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens heads qk_dim"]:
        return self.softmax_scaling(super()._scaled(queries, batch), batch)
