"""A checkpoint folder: where it is, what it says of itself, which tensors it holds.

Nothing here imports torch or reads a weight, so that a plan can be printed from
the folder alone. Only JSON and safetensors are ever opened: both are data,
where a pickle is a program.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
_DOWNLOADED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_NOT_DOWNLOADED = ["*/*", "consolidated*", "adapter*"]  # other formats of the same weights
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DEMO = Path(__file__).parents[1] / "demo"
_LONGEST_HEADER = 100_000_000  # bytes; safetensors' own limit

_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint: what its file's header says of it.

    `dtype` is safetensors' name (`"F32"`, `"BF16"`, ...); the bytes of the
    tensor are `[start, start + num_bytes)` of the file.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def locate(model: str, *, config_only: bool = False, downloaded: bool = False) -> Path:
    """The folder of a model: itself if it is one, else what the Hub has under that id.

    A GGUF file is its own place. `demo` is the shipped model, unless there is a folder of
    that name. With `config_only` no more than `config.json` is downloaded; with `downloaded`
    nothing is, and the Hub isn't asked what is new.

    Raises:
        ValueError: it is neither a folder nor a Hub id, or the Hub has no such model.
        OSError: the Hub can't be reached.
    """
    folder = Path(os.path.expanduser(model))
    if model and folder.is_dir():
        return folder
    if model == "demo":
        return _DEMO
    if folder.is_file():
        if folder.suffix == ".gguf":
            return folder
        raise ValueError(
            f"model={model!r} is a file; should be the folder that holds config.json, or a .gguf"
        )
    if not _HUB_ID.fullmatch(model) or ".." in model or "--" in model:
        raise ValueError(
            f"model={model!r}: there is no such folder, and a Hub id looks like 'owner/name'"
        )
    return _download(model, ["config.json"] if config_only else _DOWNLOADED, downloaded)


def _download(hub_id: str, patterns: list[str], is_here: bool) -> Path:
    # Imported here: a local folder never touches the network.
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(
            snapshot_download(
                hub_id,
                allow_patterns=patterns,
                ignore_patterns=_NOT_DOWNLOADED,
                local_files_only=is_here,
            )
        )
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ValueError(
            f"model={hub_id!r}: there is no such folder, and the Hub has no such model "
            f"that you may read: {_first_line(error)}"
        ) from error
    except Exception as error:
        raise OSError(
            f"model={hub_id!r}: there is no such folder, and it could not be downloaded "
            f"from the Hub: {type(error).__name__}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def read_config(directory: Path) -> dict[str, Any]:
    """The model's `config.json`.

    Raises:
        ValueError: the file is missing or is not a JSON object.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise ValueError(f"{path}: missing; a model folder should hold config.json")
    return read_json_object(path)


def read_generation_config(directory: Path) -> dict[str, Any]:
    """The model's `generation_config.json`, `{}` if it has none."""
    path = directory / "generation_config.json"
    return read_json_object(path) if path.is_file() else {}


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: the file can't be read or holds something else.
    """
    return _as_object(path, read_text(path))


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        ValueError: the file can't be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: can't be read as UTF-8 text: {error}") from error


def _as_object(path: Path, text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: holds a JSON {type(value).__name__}; should be an object")
    return value


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint: one, or the shards its index names.

    Raises:
        ValueError: there are none, one is missing, the index is malformed or names a
            path outside the folder, or the folder holds two checkpoints.
    """
    single = directory / _SINGLE
    if not (directory / _INDEX).is_file():
        if single.is_file():
            return [single]
        raise ValueError(_explain_no_weights(directory))
    files = sorted({directory / shard for shard in _weight_map(directory).values()})
    if single.is_file() and single not in files:
        raise ValueError(
            f"{directory}: {_SINGLE} and the shards of {_INDEX} are two checkpoints; "
            "should be one of them"
        )
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(f"{directory}: {_INDEX} names files that are missing: {missing}")
    return files


def _explain_no_weights(directory: Path) -> str:
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles:
        return (
            f"{directory}: the weights are pickles ({', '.join(pickles[:5])}), which can run code "
            f"when they are opened and are never read; should be converted to {_SINGLE}"
        )
    return f"{directory}: no weights; should hold {_SINGLE} or {_INDEX}"


def _weight_map(directory: Path) -> Mapping[str, str]:
    path = directory / _INDEX
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{path}: weight_map should be an object of tensor name: file name")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _stays_inside(shard):
            raise ValueError(
                f"{path}: weight_map[{name!r}]={shard!r}: should be a .safetensors file "
                "inside the folder"
            )
    return weight_map


def _stays_inside(shard: str) -> bool:
    """Whether a file name can only mean a safetensors file in or below the folder.

    Judged by its text, as both kinds of system would read it. Links are followed:
    the Hub's cache is made of them.
    """
    if "\0" in shard or not shard.endswith(".safetensors"):
        return False
    posix, windows = PurePosixPath(shard), PureWindowsPath(shard)
    return not (posix.root or windows.root or windows.drive or ".." in windows.parts)


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint by name, from the headers of its files alone.

    Raises:
        ValueError: a file is truncated or corrupt, two files hold the same tensor,
            or the index names a tensor that its file does not hold.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(directory):
        for tensor in read_header(file):
            if tensor.name in tensors:
                other = tensors[tensor.name].file.name
                raise ValueError(f"{file}: {tensor.name!r} is in {other} too")
            tensors[tensor.name] = tensor
    if (directory / _INDEX).is_file():
        _check_index(directory, tensors)
    return tensors


def _check_index(directory: Path, tensors: Mapping[str, StoredTensor]) -> None:
    absent = [
        f"{name!r} in {shard}"
        for name, shard in _weight_map(directory).items()
        if name not in tensors or tensors[name].file != directory / shard
    ]
    if absent:
        listed = ", ".join(absent[:20]) + (", ..." if len(absent) > 20 else "")
        raise ValueError(
            f"{directory / _INDEX}: {len(absent)} tensors are not where it says: {listed}"
        )


def read_header(file: Path) -> list[StoredTensor]:
    """The tensors of one safetensors file, in the order of their bytes.

    A file is a header's length (8 bytes, little-endian), the header (a JSON
    object), and the tensors' bytes end to end.

    Raises:
        ValueError: the file is truncated or corrupt.
    """
    file_bytes = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if file_bytes < 8 or length > min(file_bytes - 8, _LONGEST_HEADER):
            raise ValueError(
                f"{file}: truncated or not a safetensors file: a header of {length} bytes "
                f"in a file of {file_bytes}"
            )
        header = _as_object(file, stream.read(length))
    header.pop("__metadata__", None)
    tensors = [_stored_tensor(file, name, header[name], 8 + length) for name in header]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.num_bytes))
    _check_extents(file, tensors, 8 + length, file_bytes)
    return tensors


def _stored_tensor(file: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        dtype, shape, start, end = None, (), 0, 0
    numbers = (*shape, start, end)
    if not isinstance(dtype, str) or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(f"{file}: corrupt header: {name!r} is {entry!r}")
    num_bytes = end - start
    if dtype in _ITEM_BYTES and num_bytes != math.prod(shape) * _ITEM_BYTES[dtype]:
        raise ValueError(
            f"{file}: corrupt header: {name!r} is {dtype} of shape {list(shape)} "
            f"in {num_bytes} bytes"
        )
    return StoredTensor(name, file, dtype, shape, data_start + start, num_bytes)


def _check_extents(file: Path, tensors: list[StoredTensor], start: int, file_bytes: int) -> None:
    for tensor in tensors:
        if tensor.start != start or tensor.num_bytes < 0:
            raise ValueError(
                f"{file}: corrupt header: {tensor.name!r} begins at byte {tensor.start}, "
                f"the tensor before it ends at {start}"
            )
        start += tensor.num_bytes
    if start != file_bytes:
        what = "truncated" if start > file_bytes else "corrupt"
        raise ValueError(f"{file}: {what}: {file_bytes} bytes long, its header says {start}")
