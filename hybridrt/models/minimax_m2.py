"""MiniMax-M2: sigmoid-routed experts, queries and keys normed over all heads of a token."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import PositiveInt

from hybridrt.layers.attention import AttentionConfig
from hybridrt.layers.moe import MoEConfig
from hybridrt.models import mixtral
from hybridrt.models.checks import one_value

_HEAD_DIM = 128


class Config(mixtral.Config):
    """Keys of a MiniMax-M2 `config.json`.

    `rotary_dim` is the older way to say how much of a head is rotated. Every layer is full
    attention, and the layers that predict further tokens are not used.
    """

    head_dim: PositiveInt | None = _HEAD_DIM
    max_position_embeddings: PositiveInt = 196_608
    rms_norm_eps: float = 1e-6
    num_experts_per_tok: PositiveInt = 8
    sliding_window: None = None
    rotary_dim: PositiveInt | None = None
    attn_type_list: list[Literal[1]] | None = None
    use_qk_norm: Literal[True] = True
    qk_norm_type: Literal["per_layer"] = "per_layer"
    scoring_func: Literal["sigmoid"] = "sigmoid"
    use_routing_bias: Literal[True] = True
    shared_intermediate_size: Literal[0] = 0

    default_rope_theta = 5_000_000.0
    has_partial_rope = True
    without_effect = (
        "attn_window_size",
        "layernorm_full_attention_beta",
        "layernorm_linear_attention_beta",
        "layernorm_mlp_beta",
        "max_model_len",
        "mlp_intermediate_size",
        "mtp_transformer_layers",
        "num_mtp_modules",
        "shared_moe_mode",
        "swa_rope_theta",
        "use_mtp",
    )

    @classmethod
    def rotated_part(cls, config: Mapping[str, Any]) -> float | None:
        """By `partial_rotary_factor`, or by `rotary_dim`."""
        rotary_dim = config.get("rotary_dim")
        factor = super().rotated_part(config)
        if factor is None and rotary_dim is not None:
            return rotary_dim / (config.get("head_dim") or _HEAD_DIM)
        return factor

    @property
    def routed_experts(self) -> int:
        """Their number, under whichever name it has."""
        names = {"num_local_experts": self.num_local_experts, "num_experts": self.num_experts}
        return one_value(256, **names)

    @property
    def moe(self) -> MoEConfig:
        """Scores are sigmoids, and a learned bias balances the choice."""
        changes = {"scoring_func": "sigmoid", "correction_bias": True}
        return super().moe.model_copy(update=changes)

    def attention(self, index: int) -> AttentionConfig:
        """Queries and keys are normed, all heads of a token together."""
        changes = {"qk_norm_eps": self.rms_norm_eps, "qk_norm_over": "heads"}
        return super().attention(index).model_copy(update=changes)


class Model(mixtral.Model):
    """Attention and experts in every layer."""

    Config = Config
    checkpoint_renames = (
        *mixtral.Model.checkpoint_renames,
        (r"\.mlp\.e_score_correction_bias$", ".mlp.gate.e_score_correction_bias"),
    )
    ignored_tensors = (*mixtral.Model.ignored_tensors, r"model\.mtp_modules\..*")
