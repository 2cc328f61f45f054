"""DeepSeek-V3.2 (arXiv 2512.02556): V3 that attends to the tokens an indexer selects."""

from typing import Literal

from jaxtyping import Float, Int32
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.kernels.add import add
from hybridrt.layers.indexer import Indexer, IndexerConfig
from hybridrt.layers.norm import add_and_norm
from hybridrt.layers.rope import Rope
from hybridrt.layers.sparse_mla import SparseMLA
from hybridrt.models import deepseek_v3
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.decoder import DecoderLayer
from hybridrt.models.glm4_moe_lite import dense_by_type


class Config(deepseek_v3.Config):
    """Keys of a DeepSeek-V3.2 `config.json`."""

    q_lora_rank: PositiveInt = 1536
    index_topk: PositiveInt = 2048
    index_head_dim: PositiveInt = 128
    index_n_heads: PositiveInt = 64
    mlp_layer_types: list[Literal["dense", "sparse"]] | None = None
    layer_types: list[Literal["indexed_attention"]] | None = None
    max_position_embeddings: PositiveInt = 163_840
    rope_interleave: Literal[True] = True

    without_effect = ("head_dim", "qk_head_dim", "num_nextn_predict_layers")

    def is_dense(self, index: int) -> bool:
        """Whether a layer has an MLP in place of experts."""
        return dense_by_type(self.mlp_layer_types, self.first_k_dense_replace, index)

    @property
    def index(self) -> IndexerConfig:
        """The indexers' sizes."""
        return IndexerConfig(
            hidden_size=self.hidden_size,
            query_input_size=self.q_lora_rank or self.hidden_size,
            index_n_heads=self.index_n_heads,
            index_head_dim=self.index_head_dim,
            index_topk=self.index_topk,
        )

    def index_rope(self, rope: Rope) -> Rope:
        """That of the indexers: half-split, where attention's is interleaved."""
        return Rope(self.rope_parameters, self.qk_rope_head_dim)

    def has_indexer(self, index: int) -> bool:
        """Whether a layer selects its own tokens; else it takes those of the layer before."""
        return True


class Layer(DecoderLayer):
    """A decoder layer that hands on which tokens it attended to."""

    self_attn: SparseMLA

    def forward_selecting(
        self,
        x: Float[Tensor, "tokens hidden"],
        batch: ForwardBatch,
        selected: Int32[Tensor, "tokens top_k"] | None,
    ) -> tuple[Float[Tensor, "tokens hidden"], Int32[Tensor, "tokens top_k"]]:
        """The stream behind the layer, and the tokens selected last."""
        normed = self.input_layernorm(x)
        attended, selected = self.self_attn.select_and_attend(normed, batch, selected)
        x, normed = add_and_norm(x, attended, self.post_attention_layernorm)
        return add(x, self.mlp(normed)), selected


class SelectingLM(CausalLM):
    """A stack of `Layer`s."""

    def forward(self, batch: ForwardBatch) -> Float[Tensor, "tokens hidden"]:
        """The last hidden state of every token in the batch."""
        x, selected = self.embed(batch), None
        for layer in self.model.layers:
            assert isinstance(layer, Layer)
            x, selected = layer.forward_selecting(x, batch, selected)
        return self.model.norm(x)


class Model(SelectingLM):
    """Sparse MLA in every layer; the first `first_k_dense_replace` have a dense MLP."""

    Config = Config

    def __init__(self, config: Config) -> None:
        rope = Rope(config.rope_parameters, config.qk_rope_head_dim, config.rope_interleave)
        index_rope = config.index_rope(rope)
        layers: list[nn.Module] = []
        for i in range(config.num_hidden_layers):
            indexer = Indexer(config.index, index_rope) if config.has_indexer(i) else None
            attention = SparseMLA(config.mla, rope, indexer)
            layers.append(
                Layer(config.hidden_size, config.rms_norm_eps, attention, config.feed_forward(i))
            )
        super().__init__(config, layers, config.rms_norm_eps, [rope, index_rope])
        # The layers behind the last predict further tokens, for drafts.
        self.ignored_tensors = tuple(
            rf"model\.layers\.{config.num_hidden_layers + i}\..*" for i in range(8)
        )
