"""hybridrt: a runtime for language models that stack attention, MLA and Mamba-family layers."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrt.config import EngineConfig
    from hybridrt.introspection.compare import compare
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

# torch asks once, at the first tensor that it makes: whether Linux may put large ones into pages of
# 2 MiB, from which weights and caches are read faster. What the environment says stays.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

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
    "compare",
    "register_model",
]

_HOMES = {
    "LLM": "hybridrt.llm",
    "EngineConfig": "hybridrt.config",
    "Session": "hybridrt.session",
    "compare": "hybridrt.introspection.compare",
    "register_model": "hybridrt.models",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that the command line starts fast."""
    if name not in __all__:
        raise AttributeError(f"module 'hybridrt' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "hybridrt.request")), name)
