"""Nemotron-H (arXiv 2504.03624) and Nemotron 3: Mamba-2, attention, MLPs and experts in any order.

Every layer is one of them behind a norm. Attention has no positions.
"""

from collections.abc import Collection, Mapping
from math import inf
from typing import Any, Literal

from pydantic import PositiveInt, model_validator
from torch import nn

from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mamba2 import Limits, Mamba2, Mamba2Config
from hybridrt.layers.moe import MoEConfig
from hybridrt.layers.relu2 import Relu2MLP, Relu2MoE
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.checks import check_agreement, check_one_for_each_layer
from hybridrt.models.config import ModelConfig
from hybridrt.models.mamba import RENAMES
from hybridrt.models.mixer_layer import MixerLayer
from hybridrt.models.nemotron_h_names import Kind, in_one_spelling
from hybridrt.models.routing import deepseek_v3_routing


class Config(ModelConfig):
    """Keys of a Nemotron-H `config.json`.

    The layers are listed in `layers_block_type`, or written in `hybrid_override_pattern`
    as a letter each: M is Mamba-2, * attention, - an MLP and E experts. As in transformers,
    no time step is shorter than `time_step_min`, which runtimes with Mamba's own kernels
    don't see to.
    """

    layers_block_type: list[Kind]
    num_attention_heads: PositiveInt = 32
    num_key_value_heads: PositiveInt | None = 8
    head_dim: PositiveInt = 128
    attention_bias: Literal[False] = False
    sliding_window: None = None
    max_position_embeddings: PositiveInt = 4096
    layer_norm_epsilon: float = 1e-5
    residual_in_fp32: bool = False
    tie_word_embeddings: Literal[False] = False
    mamba_num_heads: PositiveInt = 128
    mamba_head_dim: PositiveInt = 64
    mamba_hidden_act: Literal["silu"] = "silu"
    mamba_proj_bias: Literal[False] = False
    ssm_state_size: PositiveInt = 128
    n_groups: PositiveInt = 8
    conv_kernel: PositiveInt = 4
    chunk_size: PositiveInt = 128
    use_bias: bool = False
    use_conv_bias: bool = True
    time_step_limit: Limits = (0.0, inf)
    time_step_min: float = 0.001
    intermediate_size: PositiveInt = 21_504
    mlp_hidden_act: Literal["relu2"] = "relu2"
    mlp_bias: bool = False
    n_routed_experts: PositiveInt = 8
    n_shared_experts: Literal[1] = 1
    moe_intermediate_size: PositiveInt = 7688
    moe_shared_expert_intermediate_size: PositiveInt = 7688
    moe_latent_size: PositiveInt | None = None
    num_experts_per_tok: PositiveInt = 2
    routed_scaling_factor: float = 1.0
    n_group: PositiveInt = 1
    topk_group: PositiveInt = 1
    norm_topk_prob: bool = True

    has_rope = False
    without_effect = (
        *("expand", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap", "time_step_rank"),
        *("mamba_dt_max", "mamba_dt_init_floor", "partial_rotary_factor", "rope_theta"),
        *("num_nextn_predict_layers", "mtp_layers_block_type", "mtp_hybrid_override_pattern"),
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As `ModelConfig.from_json`, in one spelling."""
        return super().from_json(in_one_spelling(config), ignore)

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        """One kind for each layer, and no limits that transformers would pass over."""
        check_one_for_each_layer(self.num_hidden_layers, layers_block_type=self.layers_block_type)
        check_agreement(self, {"time_step_limit": (0.0, inf)})
        return self

    def mixer(self, index: int) -> nn.Module:
        """What stands in that layer."""
        match self.layers_block_type[index]:
            case "mamba":
                return Mamba2(self.mamba)
            case "attention":
                return Attention(self.attention, rope=None)
            case "mlp":
                return Relu2MLP(self.hidden_size, self.intermediate_size, self.mlp_bias)
            case "moe":
                return Relu2MoE(self.moe, self.moe_latent_size)

    @property
    def attention(self) -> AttentionConfig:
        """The attention layers' sizes."""
        return AttentionConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads or self.num_attention_heads,
            head_dim=self.head_dim,
        )

    @property
    def mamba(self) -> Mamba2Config:
        """The Mamba-2 layers' sizes."""
        return Mamba2Config(
            hidden_size=self.hidden_size,
            num_heads=self.mamba_num_heads,
            head_dim=self.mamba_head_dim,
            state_size=self.ssm_state_size,
            n_groups=self.n_groups,
            conv_kernel=self.conv_kernel,
            chunk_size=self.chunk_size,
            use_bias=self.use_bias,
            use_conv_bias=self.use_conv_bias,
            time_step_limit=(self.time_step_min, inf),
            norm_eps=self.layer_norm_epsilon,
        )

    @property
    def moe(self) -> MoEConfig:
        """The experts' sizes and their routing."""
        return deepseek_v3_routing(
            self,
            shared_intermediate_size=self.moe_shared_expert_intermediate_size,
            shared_bias=self.mlp_bias,
        )


class Model(CausalLM):
    """The layers that the config lists. Multi-token prediction is not used."""

    Config = Config
    checkpoint_renames = RENAMES
    ignored_tensors = (r"mtp\..*",)

    def __init__(self, config: Config) -> None:
        size, eps = config.hidden_size, config.layer_norm_epsilon
        layers = [MixerLayer(size, eps, config.mixer(i)) for i in range(config.num_hidden_layers)]
        super().__init__(config, layers, eps, float32_residual=config.residual_in_fp32)
