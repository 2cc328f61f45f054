"""A.X-K1 (skt/A.X-K1): DeepSeek-V3 with a norm behind its experts."""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from hybridrt.layers.moe import MoE, MoEConfig, Router
from hybridrt.layers.norm import RMSNorm
from hybridrt.models import deepseek_v3
from hybridrt.models.glm4_moe_lite import dense_by_type


class Config(deepseek_v3.Config):
    """Keys of an A.X-K1 `config.json`, with `mlp_layer_types` or the keys before them."""

    q_lora_rank: PositiveInt = 1536
    n_routed_experts: PositiveInt = 192
    first_k_dense_replace: int = 1
    moe_layer_freq: PositiveInt = 1
    mlp_layer_types: list[Literal["dense", "sparse"]] | None = None
    max_position_embeddings: PositiveInt = 32_768

    def is_dense(self, index: int) -> bool:
        """Whether a layer has an MLP in place of experts."""
        if self.mlp_layer_types is None and index % self.moe_layer_freq:
            return True
        return dense_by_type(self.mlp_layer_types, self.first_k_dense_replace, index)

    def feed_forward(self, index: int) -> nn.Module:
        """What stands behind a layer's attention."""
        if self.is_dense(index):
            return super().feed_forward(index)
        return NormedMoE(self.moe, self.rms_norm_eps)


class OptionallyBiasedRouter(Router):
    """A router whose bias is zero where a checkpoint has none."""

    optional_tensors = ("e_score_correction_bias",)

    def __init__(self, config: MoEConfig) -> None:
        super().__init__(config)
        del self.e_score_correction_bias
        zeros = torch.zeros(config.num_experts, dtype=torch.float32, device="cpu")
        self.register_buffer("e_score_correction_bias", zeros, persistent=False)


class NormedMoE(MoE):
    """`norm(experts(x))`."""

    def __init__(self, config: MoEConfig, eps: float) -> None:
        super().__init__(config)
        self.gate = OptionallyBiasedRouter(config)
        self.post_mlp_layernorm = RMSNorm(config.hidden_size, eps)

    def forward(self, x: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        return self.post_mlp_layernorm(super().forward(x))


class Model(deepseek_v3.Model):
    """MLA in every layer, and an MLP or experts."""

    Config = Config
    checkpoint_renames = ((r"(layers\.\d+)\.post_mlp_layernorm\.", r"\1.mlp.post_mlp_layernorm."),)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # Checkpoints have the norm in every layer.
        dense = "|".join(str(i) for i in range(config.num_hidden_layers) if config.is_dense(i))
        unused = rf"model\.layers\.({dense})\.mlp\.post_mlp_layernorm\.weight"
        self.ignored_tensors += (unused, r".*\.inv_freq") if dense else (r".*\.inv_freq",)
