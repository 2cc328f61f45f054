"""DeepSeek-V3 (arXiv 2412.19437): V2 with sigmoid routing, balanced by a learned bias."""

from typing import Literal

from pydantic import PositiveInt

from hybridrt.layers.moe import MoEConfig
from hybridrt.models import deepseek_v2
from hybridrt.models.routing import deepseek_v3_routing


class Config(deepseek_v2.Config):
    """Keys of a DeepSeek-V3 `config.json`. Its multi-token prediction layers are not used."""

    moe_intermediate_size: PositiveInt = 2048
    n_routed_experts: PositiveInt = 256
    n_shared_experts: int | None = 1
    num_experts_per_tok: PositiveInt = 8
    first_k_dense_replace: int = 3
    scoring_func: Literal["sigmoid"] = "sigmoid"
    topk_method: Literal["noaux_tc"] = "noaux_tc"
    n_group: PositiveInt | None = 8
    topk_group: PositiveInt | None = 4
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    max_position_embeddings: PositiveInt = 4096
    rope_interleave: bool = True
    mlp_bias: Literal[False] = False

    without_effect = ("head_dim", "qk_head_dim", "num_nextn_predict_layers")

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return deepseek_v3_routing(self, self.n_shared_experts)


class Model(deepseek_v2.Model):
    """MLA in every layer; the first `first_k_dense_replace` have a dense MLP."""

    Config = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # The layers behind the last predict further tokens, for drafts.
        self.ignored_tensors = tuple(
            rf"model\.layers\.{config.num_hidden_layers + i}\..*" for i in range(8)
        )
