"""Loading a model for a command, with progress for whoever watches."""

import gc
import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from hybridrt.cli.options import EngineOptions
from hybridrt.cli.output import shows_progress, status_console

if TYPE_CHECKING:
    from hybridrt.config import EngineConfig
    from hybridrt.llm import LLM


def load_llm(model: str, engine: EngineOptions, **more: Any) -> "LLM":
    """The model, ready to run. Wrong options are refused before torch is imported.

    `hybridrt top` sees it, unless the environment says otherwise.
    """
    if "HYBRIDRT_PUBLISH_STATS" not in os.environ:
        more = {"publish_stats": True} | more
    config = engine_config(model, engine, **more)
    with busy("starting"):
        from hybridrt.llm import LLM
    options = config.model_dump(exclude={"model"})
    llm = LLM(config.model, progress=shows_progress(), **options)
    if not gc.isenabled():  # since `main`
        gc.freeze()
        gc.enable()
    return llm


def engine_config(model: str, engine: EngineOptions, **more: Any) -> "EngineConfig":
    """The options as an `EngineConfig`."""
    from hybridrt.config import EngineConfig

    return EngineConfig(model=model, **(engine.fields() | more))


def busy(doing: str) -> AbstractContextManager[Any]:
    """Says on standard error what takes a while, to whoever watches."""
    return status_console().status(f"{doing} ...") if shows_progress() else nullcontext()
