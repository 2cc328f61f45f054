"""LongCat-Flash (arXiv 2509.01322): two attentions a layer, and a mixture beside the second.

The experts see what the first MLP sees, and what they give joins the stream behind the second.
Some of them cost nothing: they give back their token.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from hybridrt.batch import ForwardBatch
from hybridrt.layers.mla import MLA, MLAConfig
from hybridrt.layers.mlp import MLP
from hybridrt.layers.moe import MoEConfig
from hybridrt.layers.norm import RMSNorm, add_and_norm
from hybridrt.layers.rope import Rope, RopeConfig
from hybridrt.layers.zero_expert_moe import ZeroExpertMoE
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig


class Config(ModelConfig):
    """Keys of a LongCat-Flash `config.json`, which has `num_layers`, of two attentions each."""

    num_layers: PositiveInt
    ffn_hidden_size: PositiveInt = 12_288
    expert_ffn_hidden_size: PositiveInt = 2048
    num_attention_heads: PositiveInt
    attention_method: Literal["MLA"] = "MLA"
    q_lora_rank: PositiveInt = 1536
    kv_lora_rank: PositiveInt = 512
    qk_nope_head_dim: PositiveInt = 128
    qk_rope_head_dim: PositiveInt = 64
    head_dim: PositiveInt | None = None
    v_head_dim: PositiveInt = 128
    mla_scale_q_lora: Literal[True] = True
    mla_scale_kv_lora: Literal[True] = True
    n_routed_experts: PositiveInt = 512
    zero_expert_num: int | None = 256
    zero_expert_type: Literal["identity"] = "identity"
    moe_topk: PositiveInt = 12
    norm_topk_prob: Literal[False] = False
    router_bias: Literal[False] = False
    routed_scaling_factor: float = 6.0
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: PositiveInt = 131_072
    rms_norm_eps: float = 1e-5
    rope_parameters: RopeConfig
    attention_bias: bool = False

    without_effect = ("num_key_value_heads", "qk_head_dim", "router_dtype")
    default_rope_theta = 10_000_000.0

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> "Config":
        """The config, checked."""
        layers = config.get("num_layers")
        counted = {} if layers is None else {"num_hidden_layers": 2 * layers}
        made = super().from_json({**config, **counted}, ignore)
        assert isinstance(made, cls)
        return made

    @model_validator(mode="after")
    def _rotates_the_whole_part(self) -> "Config":
        if self.head_dim not in (None, self.qk_rope_head_dim):
            raise ValueError(f"head_dim={self.head_dim} should be {self.qk_rope_head_dim}")
        return self

    @property
    def moe(self) -> MoEConfig:
        """All experts, those that cost nothing too."""
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.expert_ffn_hidden_size,
            num_experts=self.n_routed_experts + (self.zero_expert_num or 0),
            num_experts_per_tok=self.moe_topk,
            norm_topk_prob=False,
            routed_scaling_factor=self.routed_scaling_factor,
            correction_bias=True,
        )

    @property
    def mla(self) -> MLAConfig:
        """The sizes of either attention."""
        return MLAConfig(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
            attention_bias=self.attention_bias,
            query_scale=(self.hidden_size / self.q_lora_rank) ** 0.5,
            latent_scale=(self.hidden_size / self.kv_lora_rank) ** 0.5,
        )


class Layer(nn.Module):
    """Attention and MLP, twice, and experts from the first MLP's input to the layer's end."""

    def __init__(self, config: Config, rope: Rope) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.mlp = ZeroExpertMoE(config.moe, config.zero_expert_num or 0)
        self.self_attn = nn.ModuleList(MLA(config.mla, rope) for _ in range(2))
        self.mlps = nn.ModuleList(MLP(hidden, config.ffn_hidden_size) for _ in range(2))
        self.input_layernorm = nn.ModuleList(RMSNorm(hidden, eps) for _ in range(2))
        self.post_attention_layernorm = nn.ModuleList(RMSNorm(hidden, eps) for _ in range(2))

    def forward(
        self, x: Float[Tensor, "tokens hidden"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens hidden"]:
        attended = self.self_attn[0](self.input_layernorm[0](x), batch)
        x, normed = add_and_norm(x, attended, self.post_attention_layernorm[0])
        shortcut = self.mlp(normed)
        x, normed = add_and_norm(x, self.mlps[0](normed), self.input_layernorm[1])
        attended = self.self_attn[1](normed, batch)
        x, normed = add_and_norm(x, attended, self.post_attention_layernorm[1])
        return x + self.mlps[1](normed) + shortcut


class Model(CausalLM):
    """The same layer all the way up. Its multi-token prediction is not used."""

    Config = Config
    checkpoint_renames = (
        (r"\.mlp\.router\.classifier\.weight$", ".mlp.gate.weight"),
        (r"\.mlp\.router\.e_score_correction_bias$", ".mlp.gate.e_score_correction_bias"),
    )

    def __init__(self, config: Config) -> None:
        rope = Rope(config.rope_parameters, config.qk_rope_head_dim, interleaved=True)
        layers = [Layer(config, rope) for _ in range(config.num_layers)]
        super().__init__(config, layers, config.rms_norm_eps, [rope])
        # transformers saves two of the three matrices of experts that cost nothing.
        zeros = "|".join(
            str(config.n_routed_experts + i) for i in range(config.zero_expert_num or 0)
        )
        unused = rf"model\.layers\.\d+\.mlp\.experts\.({zeros})\..*"
        self.ignored_tensors = (r"model\.mtp\..*", *([unused] if zeros else []))
