"""Qwen3.5 with experts (Qwen team, 2026), its text model."""

from pydantic import PositiveInt

from hybridrt.models import qwen3_5, qwen3_next


class Config(qwen3_5.Config):
    """Keys of a Qwen3.5 `text_config` with experts."""

    num_key_value_heads: PositiveInt = 2
    intermediate_size: PositiveInt | None = None
    num_experts: PositiveInt = 256
    num_experts_per_tok: PositiveInt = 8


class Model(qwen3_next.Model):
    """Gated DeltaNet and gated attention, each followed by experts and a shared one."""

    Config = Config
