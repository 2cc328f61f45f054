"""Models: one file per architecture, named after its `model_type`.

Each file has a `Config` and a `Model`. A file whose name is no `model_type` is listed
in `_SHARED`.
"""

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrt.models.causal_lm import CausalLM

_SHARED = {
    "causal_lm",
    "config",
    "decoder",
    "stack_attention",
    "stack_layer",
    "stack_recurrent",
}


@cache
def known_model_types() -> tuple[str, ...]:
    """Every `model_type` that has a file here."""
    names = {module.name for module in pkgutil.iter_modules(__path__)}
    return tuple(sorted(names - _SHARED))


def model_class(config: dict[str, Any]) -> "type[CausalLM]":
    """The `Model` for this `config.json`.

    Raises:
        ValueError: there is no file for its `model_type`.
    """
    model_type = config.get("model_type")
    if model_type not in known_model_types():
        raise ValueError(
            f"config.json: model_type={model_type!r} is not known; "
            f"known are {', '.join(known_model_types())}"
        )
    return import_module(f"{__name__}.{model_type}").Model
