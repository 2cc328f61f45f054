"""Hunyuan-A13B (Tencent, 2025): Hunyuan with routed experts beside the MLP."""

from typing import Any, Literal

from pydantic import PositiveInt, model_validator
from torch import nn

from hybridrt.layers.moe import MoE, MoEConfig
from hybridrt.models import hunyuan_v1_dense


class Config(hunyuan_v1_dense.Config):
    """Keys of a Hunyuan-MoE `config.json`. A number may be a list with one for every layer.

    transformers makes all experts as large as `intermediate_size`.
    """

    num_experts: PositiveInt = 1
    moe_topk: PositiveInt = 1
    moe_intermediate_size: PositiveInt | None = None
    num_shared_expert: Literal[1] = 1
    use_mixed_mlp_moe: Literal[True] = True
    moe_drop_tokens: Literal[False] = False

    without_effect = (
        *hunyuan_v1_dense.Config.without_effect,
        "moe_layer_num_skipped",
        "moe_random_routing_dropped_token",
    )

    @model_validator(mode="before")
    @classmethod
    def _alike(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {key: _one(key, value) for key, value in values.items()}

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        if self.moe_intermediate_size not in (None, self.intermediate_size):
            raise ValueError(
                f"moe_intermediate_size={self.moe_intermediate_size} should be "
                f"intermediate_size={self.intermediate_size}"
            )
        return self

    def feed_forward(self, index: int) -> nn.Module:
        """Experts in every layer, and one that is shared."""
        sizes = MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.intermediate_size,
            num_experts=self.num_experts,
            num_experts_per_tok=self.moe_topk,
            shared_intermediate_size=self.intermediate_size,
        )
        return MoE(sizes)


def _one(key: str, value: Any) -> Any:
    """The number that all layers have."""
    per_layer = ("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert")
    if key not in per_layer or not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise ValueError(f"{key}={value} should be the same in every layer")
    return value[0]


class Model(hunyuan_v1_dense.Model):
    """Attention and experts in every layer."""

    Config = Config
    checkpoint_renames = (
        *hunyuan_v1_dense.Model.checkpoint_renames,
        (r"\.mlp\.shared_mlp\.", ".mlp.shared_experts."),
        (r"\.mlp\.gate\.wg\.", ".mlp.gate."),
    )
