"""GLM-4.7-Flash (zai-org, `glm4_moe_lite`): DeepSeek-V3's layers, listed one by one."""

from typing import Literal

from pydantic import Field, PositiveInt

from hybridrt.models import deepseek_v3


class Config(deepseek_v3.Config):
    """Keys of a `glm4_moe_lite` `config.json`. Unless `mlp_layer_types` says more, one is dense."""

    moe_intermediate_size: PositiveInt = 1536
    q_lora_rank: PositiveInt | None = 768
    qk_nope_head_dim: PositiveInt = 192
    v_head_dim: PositiveInt = 256
    n_routed_experts: PositiveInt = 64
    num_experts_per_tok: PositiveInt = 4
    first_k_dense_replace: Literal[1] = 1
    mlp_layer_types: list[Literal["dense", "sparse"]] | None = None
    n_group: PositiveInt | None = 1
    topk_group: PositiveInt | None = 1
    routed_scaling_factor: float = 1.8
    max_position_embeddings: PositiveInt = 202_752
    rms_norm_eps: float = 1e-5
    partial_rotary_factor: float = Field(1.0, ge=1, le=1)

    def is_dense(self, index: int) -> bool:
        """Whether a layer has an MLP in place of experts."""
        return dense_by_type(self.mlp_layer_types, self.first_k_dense_replace, index)


class Model(deepseek_v3.Model):
    """MLA in every layer, and an MLP or experts as `mlp_layer_types` says."""

    Config = Config


def dense_by_type(
    mlp_layer_types: list[Literal["dense", "sparse"]] | None, first_dense: int, index: int
) -> bool:
    """Whether layer `index` has an MLP: as listed, or if nothing is, the first few.

    Raises:
        ValueError: the list ends before that layer.
    """
    if mlp_layer_types is None:
        return index < first_dense
    if index >= len(mlp_layer_types):
        raise ValueError(f"mlp_layer_types={mlp_layer_types} should have a type for layer {index}")
    return mlp_layer_types[index] == "dense"
