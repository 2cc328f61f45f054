"""Qwen3.5 (Qwen team, 2026), its text model: Qwen3-Next's layers, each followed by an MLP."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt

from hybridrt.models import qwen3_next
from hybridrt.models.config import ModelConfig


class Config(qwen3_next.Config):
    """Keys of a Qwen3.5 `text_config`.

    Positions of text are the same in all three parts of its multimodal rotary embedding, so
    how those share a head, `mrope_section` and `mrope_interleaved`, has no effect.
    """

    intermediate_size: PositiveInt = 12_288
    num_key_value_heads: PositiveInt = 4
    num_experts: Literal[0] = 0
    attn_output_gate: Literal[True] = True
    mamba_ssm_dtype: Literal["float32"] = "float32"

    projections = "by_kind"
    # Layers that predict further tokens, for drafts, are not used.
    without_effect = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """As `ModelConfig.from_json`."""
        key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        rope = {k: v for k, v in (config.get(key) or {}).items() if not k.startswith("mrope_")}
        return super().from_json({**config, key: rope}, ignore)


class Model(qwen3_next.Model):
    """Gated DeltaNet and gated attention, each followed by an MLP."""

    Config = Config
