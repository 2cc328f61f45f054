"""Hunyuan dense (Tencent, 2025): Llama whose queries and keys are normed once rotated."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt

from hybridrt.layers.attention import AttentionConfig
from hybridrt.models.config import ModelConfig
from hybridrt.models.transformer import TransformerConfig, TransformerLM


class Config(TransformerConfig):
    """Keys of a Hunyuan `config.json`.

    The `dynamic` rotary embedding with an `alpha` has a larger base, whatever the length.
    """

    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: float = 1e-5
    attention_head_dim: PositiveInt | None = None
    mlp_bias: Literal[False] = False
    norm_type: Literal["rms"] = "rms"
    use_cla: Literal[False] = False
    use_mla: Literal[False] = False
    use_qk_norm: Literal[True] = True
    use_rotary_pos_emb: Literal[True] = True
    add_classification_head: Literal[False] = False

    without_effect = (
        "cla_share_factor",
        "eod_token_id",
        "im_end_id",
        "im_newline_id",
        "im_start_id",
        "mask_init_id",
        "org_vocab_size",
        "pad_id",
        "sep_token_id",
        "text_end_id",
        "text_start_id",
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As for every model. With an `alpha` the other numbers of `rope_scaling` don't count."""
        values = dict(config)
        rope = dict(values.get("rope_scaling") or values.get("rope_parameters") or {})
        alpha = rope.pop("alpha", None)
        if rope.get("rope_type", rope.get("type")) == "dynamic" and alpha:
            dim = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
            theta = rope.get("rope_theta") or values.get("rope_theta") or cls.default_rope_theta
            rope = {"rope_type": "default", "rope_theta": theta * alpha ** (dim / (dim - 2))}
        values.pop("rope_scaling", None)
        return super().from_json({**values, "rope_parameters": rope}, ignore)

    def attention(self, index: int) -> AttentionConfig:
        """Queries and keys are normed, behind the rotary embedding."""
        changes = {"qk_norm_eps": self.rms_norm_eps, "qk_norm_after_rope": True}
        return super().attention(index).model_copy(update=changes)


class Model(TransformerLM):
    """Attention and SwiGLU in every layer."""

    Config = Config
    checkpoint_renames = (
        (r"\.query_layernorm\.", ".q_norm."),
        (r"\.key_layernorm\.", ".k_norm."),
    )
