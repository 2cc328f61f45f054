"""ModelConfig: what a model file understands of a `config.json`, and refuses of it."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from pydantic import PositiveInt

from hybridrt.layers.rope import RopeConfig, read_rope_parameters
from hybridrt.values import Value

WITHOUT_EFFECT = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "aux_loss_alpha",
        "bad_words_ids",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "decoder_start_token_id",
        "ep_size",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "keys_to_ignore_at_inference",
        "label2id",
        "num_logits_to_keep",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "rescale_prenorm_residual",
        "resid_pdrop",
        "residual_dropout",
        "return_dict",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "sep_token_id",
        "seq_aux",
        "task_specific_params",
        "time_step_floor",
        "time_step_init_scheme",
        "time_step_max",
        "time_step_min",
        "time_step_scale",
        "tokenizer_class",
        "torchscript",
        "transformers_version",
        "use_associative_scan",
        "use_cache",
        "use_mamba_kernels",
        "use_mambapy",
        "z_loss_coefficient",
    }
)
"""Keys that matter in training, in generation or to transformers, and not to a forward pass."""


class ModelConfig(Value):
    """The keys of a `config.json` that every model has; model files add their own.

    A key that a model file doesn't name, and that is not known to be without effect, is
    refused: it might change the result. Sizes are positive where the layers need them so.
    """

    model_type: str
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    max_position_embeddings: PositiveInt | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    dtype: str | None = None

    without_effect: ClassVar[Collection[str]] = ()
    """Further keys that this model file may leave aside."""
    has_rope: ClassVar[bool] = True
    """Whether `rope_parameters` is filled in, from whichever keys the file has."""
    has_partial_rope: ClassVar[bool] = False
    """Whether a part of each head may be rotated."""
    default_rope_theta: ClassVar[float] = 10_000.0
    """The base of the rotary embedding where the file has none."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any], ignore: Collection[str] = ()) -> "ModelConfig":
        """The config, checked.

        Raises:
            ValueError: a key is missing, of another type, out of range or unknown; unknown
                keys whose value is null, or that are in `ignore`, are left aside.
        """
        values = {key: _plain(value) for key, value in config.items() if key not in ignore}
        if "torch_dtype" in values:
            values.setdefault("dtype", values.pop("torch_dtype"))
        if isinstance(values.get("dtype"), str):
            values["dtype"] = values["dtype"].removeprefix("torch.")
        if cls.has_rope:
            values["rope_theta"] = values.get("rope_theta") or cls.default_rope_theta
            rope = RopeConfig(**read_rope_parameters(values))
            if rope.partial_rotary_factor not in (None, 1.0) and not cls.has_partial_rope:
                raise ValueError(
                    f"config.json: partial_rotary_factor={rope.partial_rotary_factor} is not "
                    f"defined for model_type {values.get('model_type')!r}; it should be 1"
                )
            values["rope_parameters"] = rope
            for key in ("rope_theta", "rope_scaling", "original_max_position_embeddings"):
                values.pop(key, None)
        return cls(**cls._known(values))

    @classmethod
    def _known(cls, values: dict[str, Any]) -> dict[str, Any]:
        aside = WITHOUT_EFFECT.union(cls.without_effect)
        unknown = values.keys() - cls.model_fields.keys() - aside
        refused = sorted(key for key in unknown if values[key] is not None)
        if refused:
            raise ValueError(
                f"config.json of model_type {values.get('model_type')!r} has "
                f"{', '.join(f'{key}={values[key]!r}' for key in refused)}, which hybridrt does "
                f"not know and which may change the result; if not, name it in ignore_config_keys"
            )
        return {key: value for key, value in values.items() if key in cls.model_fields}

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end an output."""
        eos = self.eos_token_id
        return () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)


def _plain(value: Any) -> Any:
    """JSON has no infinity; transformers writes `{"__float__": "Infinity"}` for it."""
    if isinstance(value, dict):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
