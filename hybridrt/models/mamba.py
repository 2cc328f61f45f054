"""Mamba (arXiv 2312.00752)."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import PositiveInt, model_validator

from hybridrt.layers.mamba1 import Mamba1, Mamba1Config
from hybridrt.models.causal_lm import CausalLM
from hybridrt.models.checks import check_agreement
from hybridrt.models.config import ModelConfig
from hybridrt.models.mixer_layer import MixerLayer

_SIZES = {
    "d_state": "state_size",
    "d_conv": "conv_kernel",
    "expand": "expand",
    "dt_rank": "time_step_rank",
    "bias": "use_bias",
    "conv_bias": "use_conv_bias",
}
_OF_INITIALISATION = {"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "A_init_range"}


def is_original(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of the `mamba_ssm` package, which has no `model_type`."""
    return "model_type" not in config and {"d_model", "n_layer"} <= config.keys()


def translate(config: Mapping[str, Any], sizes: Mapping[str, str]) -> dict[str, Any]:
    """A config of the `mamba_ssm` package (`MambaConfig`) under transformers' names.

    `sizes` are the names of what may stand in `ssm_cfg`. Rows of the embedding, which the
    config doesn't say, are as many as the padding makes of the vocabulary.

    Raises:
        ValueError: the layers are not all of one kind, or `ssm_cfg` has what isn't known.
    """
    config = dict(config)
    mixer = {k: v for k, v in (config.pop("ssm_cfg", None) or {}).items() if k != "layer"}
    unknown = sorted(mixer.keys() - sizes.keys() - _OF_INITIALISATION - {"use_fast_path"})
    attends, between = config.pop("attn_layer_idx", None), config.pop("d_intermediate", 0)
    config.pop("attn_cfg", None)
    if unknown or attends or between:
        raise ValueError(
            f"config.json: ssm_cfg has {unknown}, attn_layer_idx={attends} and "
            f"d_intermediate={between}; it should have nothing but {sorted(sizes)}, [] and 0"
        )
    multiple = config.pop("pad_vocab_size_multiple", 8)
    config["vocab_size"] = -(-config["vocab_size"] // multiple) * multiple
    for key, name in (("d_model", "hidden_size"), ("n_layer", "num_hidden_layers")):
        config[name] = config.pop(key)
    config["tie_word_embeddings"] = config.pop("tie_embeddings", True)
    return config | {sizes[key]: value for key, value in mixer.items() if key in sizes}


class Config(ModelConfig):
    """Keys of a Mamba `config.json`, that of transformers or that of `mamba_ssm`."""

    state_size: PositiveInt = 16
    expand: int | float = 2
    intermediate_size: PositiveInt | None = None
    conv_kernel: PositiveInt = 4
    time_step_rank: PositiveInt | Literal["auto"] = "auto"
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_act: Literal["silu"] = "silu"
    layer_norm_epsilon: float = 1e-5
    residual_in_fp32: bool = True
    tie_word_embeddings: bool = True
    fused_add_norm: bool = True
    rms_norm: Literal[True] = True
    d_inner: int | None = None
    d_model: int | None = None
    n_layer: int | None = None

    has_rope = False
    without_effect = ("pad_vocab_size_multiple", "ssm_cfg")

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> ModelConfig:
        """The config, checked; see `translate`."""
        if is_original(config):
            config = {**translate(config, _SIZES), "model_type": "mamba"}
        return super().from_json(config, ignore)

    @property
    def inner(self) -> int:
        """Channels of the recurrence."""
        return int(self.expand * self.hidden_size)

    @property
    def mixer(self) -> Mamba1Config:
        """The sizes of every layer's mixer."""
        rank = self.time_step_rank
        return Mamba1Config(
            hidden_size=self.hidden_size,
            intermediate_size=self.inner,
            state_size=self.state_size,
            conv_kernel=self.conv_kernel,
            time_step_rank=-(-self.hidden_size // 16) if rank == "auto" else rank,
            use_bias=self.use_bias,
            use_conv_bias=self.use_conv_bias,
        )

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        """The same size under two names has one value."""
        same = {"intermediate_size": self.inner, "d_inner": self.inner}
        check_agreement(
            self, {**same, "d_model": self.hidden_size, "n_layer": self.num_hidden_layers}
        )
        return self


RENAMES = (
    (r"^(backbone|model)\.embeddings?\.", "model.embed_tokens."),
    (r"^(backbone|model)\.norm_f\.", "model.norm."),
    (r"^backbone\.", "model."),
)


class Model(CausalLM):
    """Mamba-1 in every layer."""

    Config = Config
    checkpoint_renames = RENAMES

    def __init__(self, config: Config) -> None:
        eps = config.layer_norm_epsilon
        layers = [
            MixerLayer(config.hidden_size, eps, Mamba1(config.mixer))
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, layers, eps, float32_residual=config.residual_in_fp32)
