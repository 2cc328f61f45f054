"""GLM-5 (zai-org/GLM-5): DeepSeek-V3.2 in which some layers share what one selects.

Sharing is IndexCache's (arXiv 2603.12201).
"""

from typing import Literal

from pydantic import PositiveInt, model_validator

from hybridrt.layers.rope import Rope
from hybridrt.models import deepseek_v32

IndexerType = Literal["full", "shared"]


class Config(deepseek_v32.Config):
    """Keys of a `glm_moe_dsa` `config.json`; of which layers select, in either spelling."""

    q_lora_rank: PositiveInt = 2048
    qk_nope_head_dim: PositiveInt = 192
    v_head_dim: PositiveInt = 256
    index_n_heads: PositiveInt = 32
    n_group: PositiveInt | None = 1
    topk_group: PositiveInt | None = 1
    max_position_embeddings: PositiveInt = 202_752
    rms_norm_eps: float = 1e-5
    indexer_rope_interleave: Literal[True] = True
    indexer_types: list[IndexerType] | None = None
    index_topk_pattern: str | list[IndexerType] | None = None
    index_topk_freq: int = 1
    index_skip_topk_offset: int = 2

    @model_validator(mode="after")
    def _every_layer_has_a_selection(self) -> "Config":
        types = self.indexers
        if len(types) < self.num_hidden_layers or types[0] != "full":
            raise ValueError(
                f"indexer_types={types} should be of {self.num_hidden_layers} layers, the first "
                f"'full'"
            )
        return self

    @property
    def indexers(self) -> list[IndexerType]:
        """For each layer, whether it selects (`full`) or takes what was selected last."""
        if self.indexer_types is not None:
            return self.indexer_types
        if isinstance(self.index_topk_pattern, str):
            return ["full" if letter == "F" else "shared" for letter in self.index_topk_pattern]
        if self.index_topk_pattern is not None:
            return self.index_topk_pattern
        every, offset = max(self.index_topk_freq, 1), self.index_skip_topk_offset
        return [
            "shared" if max(i - offset + 1, 0) % every else "full"
            for i in range(self.num_hidden_layers)
        ]

    def index_rope(self, rope: Rope) -> Rope:
        """That of the indexers: attention's."""
        return rope

    def has_indexer(self, index: int) -> bool:
        """Whether a layer selects its own tokens; else it takes those of the layer before."""
        return self.indexers[index] == "full"


class Model(deepseek_v32.Model):
    """Sparse MLA in every layer; the first `first_k_dense_replace` have a dense MLP."""

    Config = Config
