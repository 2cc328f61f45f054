"""Mamba-2 (arXiv 2405.21060)."""

from collections.abc import Collection, Mapping
from math import inf
from typing import Any, Literal

from pydantic import PositiveInt, model_validator

from hybridrt.layers.mamba2 import Limits, Mamba2, Mamba2Config
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.config import ModelConfig
from hybridrt.models.mamba import RENAMES, is_original, translate
from hybridrt.models.mixer_layer import MixerLayer

_SIZES = {
    "d_state": "state_size",
    "d_conv": "conv_kernel",
    "expand": "expand",
    "headdim": "head_dim",
    "ngroups": "n_groups",
    "chunk_size": "chunk_size",
    "bias": "use_bias",
    "conv_bias": "use_conv_bias",
    "dt_limit": "time_step_limit",
}


class Config(ModelConfig):
    """Keys of a Mamba-2 `config.json`, that of transformers or that of `mamba_ssm`."""

    num_heads: PositiveInt = 128
    head_dim: PositiveInt = 64
    state_size: PositiveInt = 128
    expand: int | float = 2
    intermediate_size: PositiveInt | None = None
    n_groups: PositiveInt = 8
    conv_kernel: PositiveInt = 4
    chunk_size: PositiveInt = 256
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_act: Literal["silu"] = "silu"
    layer_norm_epsilon: float = 1e-5
    time_step_limit: Limits = (0.0, inf)
    residual_in_fp32: bool = True
    fused_add_norm: bool = True
    rms_norm: Literal[True] = True

    has_rope = False
    # Every runtime of these checkpoints norms behind the gate, whatever the key says.
    without_effect = ("norm_before_gate", "time_step_rank")

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """The config, checked. That of `mamba_ssm` leaves the number of heads to be found."""
        if is_original(config):
            values = {"model_type": "mamba2", "n_groups": 1, "expand": 2, "head_dim": 64}
            values |= translate(config, _SIZES)
            inner = int(values["expand"] * values["hidden_size"])
            config = {**values, "num_heads": inner // values["head_dim"]}
        return super().from_json(config, ignore)

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        """The same size under two names has one value."""
        inner = self.num_heads * self.head_dim
        if int(self.expand * self.hidden_size) != inner:
            raise ValueError(
                f"expand * hidden_size = {self.expand * self.hidden_size} should be "
                f"num_heads * head_dim = {inner}"
            )
        if self.intermediate_size not in (None, inner):
            raise ValueError(f"intermediate_size={self.intermediate_size} should be {inner}")
        return self


class Model(CausalLM):
    """Mamba-2 in every layer."""

    Config = Config
    checkpoint_renames = RENAMES

    def __init__(self, config: Config) -> None:
        eps = config.layer_norm_epsilon
        mixer = Mamba2Config(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            state_size=config.state_size,
            n_groups=config.n_groups,
            conv_kernel=config.conv_kernel,
            chunk_size=config.chunk_size,
            use_bias=config.use_bias,
            use_conv_bias=config.use_conv_bias,
            time_step_limit=config.time_step_limit,
            norm_eps=eps,
        )
        layers = [
            MixerLayer(config.hidden_size, eps, Mamba2(mixer))
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, eps, float32_residual=config.residual_in_fp32)
