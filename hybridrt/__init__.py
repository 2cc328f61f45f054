"""hybridrt: a runtime for language models that stack attention, MLA and Mamba-family layers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrt.config import EngineConfig
    from hybridrt.llm import LLM
    from hybridrt.models import register_model
    from hybridrt.request import (
        CompletionOutput,
        Logprob,
        Request,
        RequestOutput,
        SamplingParams,
    )
    from hybridrt.session import Session

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "Session",
    "register_model",
]

_HOMES = {
    "LLM": "hybridrt.llm",
    "EngineConfig": "hybridrt.config",
    "Session": "hybridrt.session",
    "register_model": "hybridrt.models",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that the command line starts fast."""
    if name not in __all__:
        raise AttributeError(f"module 'hybridrt' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "hybridrt.request")), name)
