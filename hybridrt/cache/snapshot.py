"""A sequence as one safetensors file: its tokens, what the cache holds of them, and checksums.

Every bit of a file is under a checksum: the bytes of each tensor under the SHA-256 that the
metadata have of it, and the header, metadata included, under a SHA-256 of its own, which is
taken with zeros in its place. So a file that was cut off or changed anywhere is refused by
what is wrong with it, before anything is made of it.
"""

import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from hybridrt.cache.contents import Contents

FORMAT = "hybridrt session"
VERSION = "1"

_DTYPES = {"I64": torch.int64, "F32": torch.float32, "U8": torch.uint8}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PAGES = "pages."
_METADATA = {"format", "version", "fingerprint", "cache_salt", "sha256", "header_sha256"}
_OPEN = "0" * 64  # stands for the header's own checksum while that is taken
_LONGEST_HEADER = 100_000_000  # bytes; safetensors' own limit


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One sequence with all its tokens computed.

    `logits` are those behind the last token; a sequence without tokens has neither logits
    nor contents. `fingerprint` is what must agree where it is taken up: plain JSON values.
    """

    token_ids: tuple[int, ...]
    logits: Float32[Tensor, " vocab"] | None
    contents: Contents
    fingerprint: Mapping[str, Any]
    cache_salt: str | None = None


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Writes the file, which is there as a whole or not at all.

    Raises:
        OSError: it can't be written; a file that was there before still is.
    """
    tensors = _tensors(snapshot)
    header = _header(snapshot, tensors)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with part.open("xb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for tensor in tensors.values():
                file.write(_bytes(tensor).data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_snapshot(path: Path) -> Snapshot:
    """Reads a file that `write_snapshot` wrote.

    Raises:
        ValueError: it is another kind of file or of another version, or was cut off or
            changed; names the file and the part that is wrong.
        OSError: it can't be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        raw = _read_header(path, file, size)
        header = _parse(path, raw)
        metadata = _check_metadata(path, header.pop("__metadata__", None))
        _check_own_checksum(path, raw, metadata["header_sha256"])
        entries = _check_entries(path, header, 8 + len(raw), size)
        digests = _json(path, "sha256", metadata["sha256"])
        if set(digests) != set(entries):
            raise ValueError(f"{path}: corrupt: checksums of {sorted(digests)}, not {[*entries]}")
        tensors = {name: _read_tensor(path, file, name, *entries[name], digests) for name in header}
    salt = _json(path, "cache_salt", metadata["cache_salt"]).get("salt")
    return _snapshot(path, tensors, _json(path, "fingerprint", metadata["fingerprint"]), salt)


def _tensors(snapshot: Snapshot) -> dict[str, Tensor]:
    tensors = {"token_ids": torch.tensor(snapshot.token_ids, dtype=torch.int64)}
    if snapshot.logits is not None:
        tensors["logits"] = snapshot.logits.cpu().contiguous()
    pages = {_PAGES + name: rows.contiguous() for name, rows in snapshot.contents.items()}
    return tensors | pages


def _bytes(tensor: Tensor) -> UInt8[np.ndarray, " bytes"]:
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _header(snapshot: Snapshot, tensors: Mapping[str, Tensor]) -> bytes:
    """The JSON, padded so that the tensors are aligned, with the checksum of itself put in."""
    digests = {name: _digest(_bytes(tensor)) for name, tensor in tensors.items()}
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": json.dumps(snapshot.fingerprint),
        "cache_salt": json.dumps({"salt": snapshot.cache_salt}),
        "sha256": json.dumps(digests),
        "header_sha256": _OPEN,
    }
    entries: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, tensor in tensors.items():
        stop = start + tensor.numel() * tensor.itemsize
        dtype, shape = _NAMES[tensor.dtype], list(tensor.shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return text.replace(_own_checksum(_OPEN), _own_checksum(_digest(text)), 1)


def _own_checksum(digest: str) -> bytes:
    # Inside a text quotes are escaped, so this stands in one place only.
    return f'"header_sha256":"{digest}"'.encode()


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_header(path: Path, file: BufferedReader, size: int) -> bytes:
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _LONGEST_HEADER):
        raise ValueError(
            f"{path}: truncated or not a safetensors file: a header of {length} bytes in a file "
            f"of {size}"
        )
    return file.read(length)


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: corrupt header: not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path}: corrupt header: should be a JSON object")
    return header


def _check_metadata(path: Path, metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        given = metadata.get("format") if isinstance(metadata, dict) else metadata
        raise ValueError(
            f"{path}: not a saved session: its metadata have the format {given!r}, "
            f"which should be {FORMAT!r}"
        )
    if metadata.get("version") != VERSION:
        raise ValueError(
            f"{path}: a session of version {metadata.get('version')!r}; this is read: {VERSION!r}"
        )
    if set(metadata) != _METADATA or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError(
            f"{path}: corrupt metadata: has the keys {sorted(metadata)}; "
            f"should be texts under {sorted(_METADATA)}"
        )
    return metadata


def _check_own_checksum(path: Path, raw: bytes, digest: str) -> None:
    given = _own_checksum(digest)
    if raw.count(given) != 1 or _digest(raw.replace(given, _own_checksum(_OPEN))) != digest:
        raise ValueError(f"{path}: corrupt header: it doesn't match its header_sha256")


def _json(path: Path, name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: corrupt metadata: {name}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: corrupt metadata: {name} should be a JSON object")
    return value


def _check_entries(
    path: Path, header: Mapping[str, Any], start: int, size: int
) -> dict[str, tuple[torch.dtype, list[int]]]:
    """Each tensor's dtype and shape; their bytes must fill the file, one behind the other."""
    entries: dict[str, tuple[torch.dtype, list[int]]] = {}
    end = 0
    for name, entry in header.items():
        try:
            dtype, shape = _DTYPES[entry["dtype"]], [*entry["shape"]]
            begin, stop = entry["data_offsets"]
            num_bytes = dtype.itemsize * math.prod(shape)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path}: corrupt header: {name!r} is {entry!r}") from None
        wrong = any(type(n) is not int or n < 0 for n in (*shape, begin, stop))
        if wrong or begin != end or stop - begin != num_bytes:
            raise ValueError(f"{path}: corrupt header: {name!r} is {entry!r}")
        entries[name], end = (dtype, shape), stop
    if start + end != size:
        what = "truncated" if start + end > size else "corrupt"
        raise ValueError(f"{path}: {what}: {size} bytes long, its header says {start + end}")
    return entries


def _read_tensor(
    path: Path,
    file: BufferedReader,
    name: str,
    dtype: torch.dtype,
    shape: list[int],
    digests: Mapping[str, str],
) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    content = _bytes(tensor)
    if file.readinto(content.data) != len(content):
        raise ValueError(f"{path}: truncated in {name!r}")
    if _digest(content) != digests[name]:
        raise ValueError(f"{path}: corrupt: the bytes of {name!r} don't match their checksum")
    return tensor


def _snapshot(
    path: Path, tensors: dict[str, Tensor], fingerprint: Mapping[str, Any], salt: Any
) -> Snapshot:
    token_ids, logits = tensors.pop("token_ids", None), tensors.pop("logits", None)
    ours = [(token_ids, torch.int64, 1)] + [(logits, torch.float32, 1)] * (logits is not None)
    ours += [(rows, torch.uint8, 2) for rows in tensors.values()]
    good = all(t is not None and (t.dtype, t.dim()) == (dtype, dim) for t, dtype, dim in ours)
    if not good or not all(name.startswith(_PAGES) for name in tensors):
        raise ValueError(f"{path}: corrupt: it holds other tensors than a session has")
    if salt is not None and not isinstance(salt, str):
        raise ValueError(f"{path}: corrupt metadata: cache_salt={salt!r} should be text")
    assert token_ids is not None
    contents = {name.removeprefix(_PAGES): rows for name, rows in tensors.items()}
    return Snapshot(tuple(token_ids.tolist()), logits, contents, fingerprint, salt)
