"""Models: one file per architecture, named after its `model_type`.

Each file has a `Config` and a `Model`. A file whose name is no `model_type` is listed
in `_SHARED`. Models from elsewhere come by `register_model`, or by an entry point of the
group `hybridrt.models` whose name is the `model_type`.
"""

import os
import pkgutil
import sys
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrt.models.causal_lm import CausalLM

_SHARED = {
    *("causal_lm", "checks", "config", "decoder", "multimodal", "routing", "transformer"),
    *("mixer_layer", "shared_block", "stream"),
    *("stack_attention", "stack_feed_forward", "stack_layer", "stack_recurrent"),
    # Second files of models.
    *("deepseek_v4_config", "dots3_note_config", "gemma4_config", "glm5_next_config"),
    *("inkling2_config", "inkling_config", "minimax_m3_config"),
    *("deepseek_v4_names", "mimo_v2_flash_names", "nemotron_h_names"),
}
_ENTRY_POINTS = "hybridrt.models"
_registered: "dict[str, type[CausalLM]]" = {}


@cache
def known_model_types() -> tuple[str, ...]:
    """Every `model_type` that has a file here."""
    names = {module.name for module in pkgutil.iter_modules(__path__)}
    return tuple(sorted(names - _SHARED))


def registered_model_types() -> tuple[str, ...]:
    """Every `model_type` that comes from elsewhere."""
    return tuple(sorted({*_registered, *(point.name for point in _entry_points())}))


def register_model(model_type: str, model: "type[CausalLM]") -> None:
    """Makes `model` the class for this `model_type` of a `config.json`, in this process.

    A package that is installed does the same for every process by an entry point:
    `[project.entry-points."hybridrt.models"]`, `my_type = "my_package.my_module:MyModel"`.

    Raises:
        ValueError: the name is taken or no name, or `model` is not a `CausalLM` that has a
            `Config` of its own.
    """
    if not isinstance(model_type, str) or not model_type:
        raise ValueError(f"model_type={model_type!r}: should be a name, as config.json has it")
    if model_type in known_model_types():
        raise ValueError(f"model_type={model_type!r} is taken by a model of hybridrt")
    if model_type in registered_model_types():
        raise ValueError(f"model_type={model_type!r} is taken by {_taken_by(model_type)}")
    from hybridrt.models.causal_lm import check_class

    given = getattr(model, "__name__", repr(model))
    check_class(model, f"register_model({model_type!r}, {given})")
    _registered[model_type] = model


def model_class(config: dict[str, Any]) -> "type[CausalLM]":
    """The `Model` for this `config.json`; for the text model of a multimodal one.

    That is found by the file's own `model_type`, with or without `_text` behind it, or by
    that of its `text_config`, if the model there names the file's in `text_config_of`.

    Raises:
        ValueError: there is none, or its name is taken twice.
    """
    model_type, text = config.get("model_type"), config.get("text_config")
    if "model_type" not in config and {"d_model", "n_layer"} <= config.keys():
        # The original packages' config has none; its mixer says which of the two it is.
        mixer = (config.get("ssm_cfg") or {}).get("layer", "Mamba1")
        model_type = {"Mamba1": "mamba", "Mamba2": "mamba2"}.get(mixer)
    found = _find(model_type)
    if found is None and isinstance(text, dict):
        inner = _find(text.get("model_type"))
        if inner is not None and model_type in inner.text_config_of:
            found = inner
    if found is None:
        others = registered_model_types()
        of_text = f" with the text_config of {text.get('model_type')!r}" if text else ""
        raise ValueError(
            f"config.json: model_type={model_type!r}{of_text} is not known; "
            f"known are {', '.join(known_model_types())}"
            + (f"; registered are {', '.join(others)}" if others else "")
        )
    return found


def _find(model_type: Any) -> "type[CausalLM] | None":
    """The class of a `model_type`, or of the same name with or without `_text`."""
    if not isinstance(model_type, str):
        return None
    bare = model_type.removesuffix("_text")
    for name in (model_type, f"{model_type}_text" if bare == model_type else bare):
        points = [point for point in _entry_points() if point.name == name]
        takers = [*(["hybridrt"] if name in known_model_types() else []), *map(_describe, points)]
        if len(takers) > 1:
            raise ValueError(
                f"model_type={name!r} is taken {len(takers)} times: by {' and by '.join(takers)}; "
                "should be by one"
            )
        if name in _registered:
            return _registered[name]
        if points:
            return _load(points[0])
        if takers:
            return import_module(f"{__name__}.{name}").Model
    return None


def _entry_points() -> tuple[EntryPoint, ...]:
    return _entry_points_of(tuple((path, _changed(path)) for path in sys.path))


def _changed(path: str) -> int | None:
    """When a package was last put there, or taken away, in nanoseconds."""
    try:
        return os.stat(path or os.curdir).st_mtime_ns
    except OSError:
        return None


@lru_cache(maxsize=1)
def _entry_points_of(_paths: tuple[tuple[str, int | None], ...]) -> tuple[EntryPoint, ...]:
    """Looked for once, as what is said of every installed package is read for it."""
    # Two values of one name are two takers; the same one twice is one package found twice.
    return tuple(dict.fromkeys(entry_points(group=_ENTRY_POINTS)))


def _load(point: EntryPoint) -> "type[CausalLM]":
    from hybridrt.models.causal_lm import check_class

    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{_describe(point)} can't be imported: {error}") from error
    return check_class(found, _describe(point))


def _describe(point: EntryPoint) -> str:
    of = f" of {point.dist.name}" if point.dist is not None else ""
    return f"the entry point {point.name} = {point.value}{of}"


def _taken_by(model_type: str) -> str:
    if model_type in _registered:
        return f"the class {_registered[model_type].__name__}"
    return " and ".join(_describe(p) for p in _entry_points() if p.name == model_type)
