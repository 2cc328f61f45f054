"""The formats of a checkpoint: a folder of safetensors with config.json, or a GGUF file."""

from pathlib import Path
from typing import Any

from hybridrt.engine.checkpoint import StoredTensor, read_config, stored_tensors
from hybridrt.engine.gguf_checkpoint import gguf_config, gguf_tensors
from hybridrt.engine.gguf_file import gguf_file, read_gguf


def checkpoint_config(path: Path) -> dict[str, Any]:
    """What the checkpoint at `path` says in its `config.json`, or would say.

    Raises:
        ValueError: it can't be read, or a GGUF file is of a model that isn't known.
        ImportError: it is a GGUF file, and the package that reads those isn't installed.
    """
    file = gguf_file(path)
    return read_config(path) if file is None else gguf_config(read_gguf(file))


def checkpoint_tensors(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint at `path` by its name, from headers alone.

    Raises:
        ValueError: a file is truncated or corrupt.
    """
    file = gguf_file(path)
    return stored_tensors(path) if file is None else gguf_tensors(read_gguf(file))
