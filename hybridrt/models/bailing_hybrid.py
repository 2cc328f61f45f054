"""Ling 3.0 (inclusionAI, 2026): KDA with bounded decays, gated MLA among it, experts."""

from pydantic import NegativeFloat, PositiveInt

from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.gated_attention import GatedMLA
from hybridrt.layers.kda import KimiDeltaAttention, KimiDeltaAttentionConfig
from hybridrt.layers.rope import Rope
from hybridrt.models import kimi_linear


class Config(kimi_linear.Config):
    """Keys of a Ling 3.0 `config.json`, in its words or in DeepSeek's."""

    moe_intermediate_size: PositiveInt = 768
    n_routed_experts: PositiveInt = 512
    n_group: PositiveInt | None = 8
    topk_group: PositiveInt | None = 4
    first_k_dense_replace: int = 2
    routed_scaling_factor: float = 2.5
    q_lora_rank: None = None
    max_position_embeddings: PositiveInt = 262_144
    rms_norm_eps: float = 1e-6
    head_dim: PositiveInt = 128
    short_conv_kernel_size: PositiveInt = 4
    layer_group_size: PositiveInt = 6
    kda_safe_gate: bool = True
    kda_lower_bound: NegativeFloat = -5.0
    linear_attn_config: None = None

    has_rope = True
    default_rope_theta = 6_000_000.0
    without_effect = ("qk_head_dim", "num_nextn_predict_layers", "mtp_loss_scaling_factor")

    def is_attention(self, index: int) -> bool:
        """Whether the layer is MLA: the last of every group, if `layer_types` doesn't say."""
        if self.layer_types is not None:
            return self.layer_types[index] == "full_attention"
        return (index + 1) % self.layer_group_size == 0

    @property
    def kda(self) -> KimiDeltaAttentionConfig:
        """The linear attention's sizes."""
        # transformers saves another head_dim than it reads, and then linear_head_dim beside it.
        return KimiDeltaAttentionConfig(
            hidden_size=self.hidden_size,
            num_heads=self.linear_num_heads or self.num_attention_heads,
            head_dim=self.linear_head_dim or self.head_dim,
            conv_kernel=self.linear_conv_kernel_dim or self.short_conv_kernel_size,
            norm_eps=self.rms_norm_eps,
            low_rank_gates=False,
            flat_a_log=True,
            decay_bound=self.kda_lower_bound if self.kda_safe_gate else None,
        )

    def mixer(self, index: int, rope: Rope | None) -> CachedLayer:
        """Gated MLA or KDA."""
        if self.is_attention(index):
            return GatedMLA(self.mla, rope)
        return KimiDeltaAttention(self.kda)


class Model(kimi_linear.Model):
    """KDA and gated MLA, each followed by an MLP or experts."""

    Config = Config
    checkpoint_renames = (
        (r"^model\.word_embeddings\.", "model.embed_tokens."),
        (r"\.attention\.", ".self_attn."),
        (r"\.self_attn\.dense\.", ".self_attn.o_proj."),
        (r"\.mlp\.gate\.expert_bias$", ".mlp.gate.e_score_correction_bias"),
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # The layers behind the last predict further tokens, for drafts.
        self.ignored_tensors = tuple(
            rf"model\.layers\.{config.num_hidden_layers + i}\..*" for i in range(8)
        )
