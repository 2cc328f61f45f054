"""A GGUF file as the checkpoint of the same model: its `config.json`, its tensors."""

import math
import re
from collections.abc import Collection, Sequence
from typing import Any

from hybridrt.engine.checkpoint import StoredTensor
from hybridrt.engine.gguf_config import ROPE_FACTORS
from hybridrt.engine.gguf_file import (
    QUANTISED,
    GgufFile,
    GgufTensor,
    JoinedTensor,
    is_known_type,
    part_of,
)
from hybridrt.engine.gguf_metadata import Metadata
from hybridrt.engine.gguf_models import GGUF_MODELS, GgufModel
from hybridrt.engine.sources import DTYPES


def gguf_config(file: GgufFile) -> dict[str, Any]:
    """The `config.json` that the file's model has.

    Raises:
        ValueError: the model isn't known, or its metadata has or lacks a key.
    """
    meta = Metadata(file)
    config = _model_of(meta).config(meta)
    if not meta.has("token_embd.weight"):
        raise ValueError(f"{file.path}: has no tensor 'token_embd.weight'")
    vocab_size = file.tensors["token_embd.weight"].shape[0]
    meta.expect("vocab_size", vocab_size)
    config |= {
        "vocab_size": vocab_size,
        "hidden_size": meta.take("embedding_length"),
        "num_hidden_layers": meta.take("block_count"),
        "tie_word_embeddings": not meta.has("output.weight"),
        "dtype": _dtype(file.tensors.values()),
        **meta.special_tokens(),
    }
    meta.refuse_rest()
    return config


def gguf_tensors(file: GgufFile) -> dict[str, StoredTensor]:
    """The file's tensors under the names of the model's checkpoint, decoded when they are read.

    Raises:
        ValueError: the model isn't known, or a tensor has a type that can't be read.
    """
    meta = Metadata(file)
    model = _model_of(meta)
    tensors: dict[str, StoredTensor] = {}
    joined: dict[str, list[GgufTensor]] = {}
    for stored in file.tensors.values():
        if stored.name == ROPE_FACTORS:
            continue
        if not is_known_type(stored):
            types = ", ".join((*DTYPES, *QUANTISED))
            raise ValueError(f"{file.path}: {stored.name!r} is {stored.dtype}; should be {types}")
        name = model.name_of(stored.name)
        tensor = _tensor(stored, name, _heads(meta, model, stored.name))
        if "{e}" in name:
            count = stored.shape[0]
            parts = {name.replace("{e}", str(e)): part_of(tensor, e, count) for e in range(count)}
            tensors |= {expert: _undecoded(part) for expert, part in parts.items()}
        elif "+" in name:
            joined.setdefault(name.replace("+", ""), []).append(tensor)
        else:
            tensors[name] = _undecoded(tensor)
    return tensors | {name: _joined(parts) for name, parts in joined.items()}


def _model_of(meta: Metadata) -> GgufModel:
    model = GGUF_MODELS.get(str(meta.architecture))
    if model is None:
        raise ValueError(
            f"{meta.file.path}: general.architecture={meta.architecture!r} is not known; known "
            f"are {', '.join(GGUF_MODELS)}"
        )
    return model


def _dtype(tensors: Collection[StoredTensor]) -> str:
    """In which the model is run: that of its matrices, bfloat16 where they are quantised."""
    kinds = {tensor.dtype for tensor in tensors if len(tensor.shape) > 1}
    for kind, dtype in (("F32", "float32"), ("F16", "float16")):
        if kinds <= {kind, "F32"}:
            return dtype
    return "bfloat16"


def _heads(meta: Metadata, model: GgufModel, name: str) -> int:
    """How many heads of a tensor have their rows in pairs; 0: none."""
    found = re.fullmatch(r"blk\.(\d+)\.attn_([qk])\.(weight|bias)", name)
    if found is None or not model.pairs_rows:
        return 0
    value = meta.peek("attention.head_count" + ("_kv" if found[2] == "k" else ""))
    return value[int(found[1])] if isinstance(value, list) else value


def _tensor(stored: StoredTensor, name: str, heads: int) -> GgufTensor:
    """The tensor with the axes that checkpoints have."""
    shape, leaf = stored.shape, name.rpartition(".")[2]
    if name.endswith(("conv1d.weight", "conv.conv.weight")):
        shape = (shape[0], 1, shape[-1])
    elif leaf == "D" or name.endswith((".mixer.norm.weight", ".mamba.norm.weight")):
        shape = (math.prod(shape),)
    elif leaf == "A_log" and shape[-1] == 1:
        shape = shape[:-1]
    matrix = (math.prod(stored.shape[:-1]), stored.shape[-1])
    if len(stored.shape) == 1 and heads:
        matrix = (stored.shape[0], 1)
    given = (stored.name, stored.file, stored.dtype, shape, stored.start, stored.num_bytes)
    return GgufTensor(*given, matrix, heads, leaf == "A_log")


def _undecoded(tensor: GgufTensor) -> StoredTensor:
    """Where the bytes are the weights, those."""
    if tensor.dtype not in DTYPES or tensor.heads or tensor.log_of_negative:
        return tensor
    given = (tensor.name, tensor.file, tensor.dtype, tensor.shape, tensor.start, tensor.num_bytes)
    return StoredTensor(*given)


def _joined(parts: Sequence[GgufTensor]) -> JoinedTensor:
    """One tensor of the rows of several, in the order of the file's names: gate before up."""
    ordered = sorted(parts, key=lambda part: part.name)
    first = ordered[0]
    rows = sum(part.shape[-2] for part in ordered)
    return JoinedTensor(
        " and ".join(part.name for part in ordered),
        first.file,
        first.dtype,
        (*first.shape[:-2], rows, first.shape[-1]),
        first.start,
        sum(part.num_bytes for part in ordered),
        tuple(ordered),
    )
