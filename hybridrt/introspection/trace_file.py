"""The files of a trace: a safetensors file for each position and each step, and an index.

A file is written beside its place and then moved there, so that one that has its name is whole.
The index is replaced so after every step: it names only what is there.
"""

import json
import reprlib
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hybridrt.cache.plan import LayerPlan

INDEX = "index.json"
FORMAT, VERSION = "hybridrt trace", 1

_NAMES = {bool: "true or false", int: "an integer", str: "text", dict: "an object", list: "a list"}
_KEYS = {"complete": bool, "every": int, "layers": dict, "positions": list, "tokens": list}
_KEYS_WITHIN: Mapping[str, Mapping[str, type]] = {
    "layers": {"name": str, "kind": str, "tokens_per_entry": int},
    "positions": {"position": int, "file": str},
    "tokens": {"start": int, "stop": int, "file": str},
}

_TOKENS = ("tokens", "dim")
_AXES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "k"): ("tokens", "kv_heads", "head_dim"),
    ("", "v"): ("tokens", "kv_heads", "head_dim"),
    ("", "entries"): ("entries", "dim"),
    ("", "memory"): ("heads", "head_k_dim", "head_v_dim"),
    ("", "normaliser"): ("heads", "head_k_dim"),
    ("", "kv_state"): ("heads", "head_v_dim", "head_k_dim"),
    ("mlstm", "peak"): ("heads",),
    ("mamba1", "ssm_state"): ("channels", "state_size"),
    ("mamba2", "ssm_state"): ("heads", "head_dim", "state_size"),
    ("gated_delta_net", "ssm_state"): ("heads", "head_k_dim", "head_v_dim"),
    ("kda", "ssm_state"): ("heads", "head_k_dim", "head_v_dim"),
}


def _axes(plan: LayerPlan, name: str) -> tuple[str, ...]:
    """What the axes of a layer's tensor are. Those of other states are inputs and channels."""
    known = _AXES.get((plan.mixer, name)) or _AXES.get(("", name))
    if known is not None:
        return known
    if plan.page_size is not None:
        return _TOKENS
    dims = next(len(shape) for state, shape, _ in plan.states if state == name)
    return ("inputs", "channels")[2 - dims :]


class TraceWriter:
    """Writes a trace into a folder while it is made.

    Raises:
        ValueError: the path is a file, or a folder with something in it.
        OSError: it can't be written.
    """

    def __init__(
        self, path: Path, plans: Mapping[int, LayerPlan], about: Mapping[str, Any]
    ) -> None:
        if path.exists() and not path.is_dir():
            raise ValueError(f"path={str(path)!r} is a file; it should be a folder, new or empty")
        if path.is_dir() and any(path.iterdir()):
            raise ValueError(
                f"path={str(path)!r} is not empty; it should be a folder, new or empty"
            )
        path.mkdir(parents=True, exist_ok=True)
        self._path, self._plans = path, plans
        self._index: dict[str, Any] = {"format": FORMAT, "version": VERSION, "complete": False}
        self._index |= {**about, "layers": _about_layers(plans), "positions": [], "tokens": []}
        self.write_index()

    def add_position(
        self,
        position: int,
        states: Mapping[int, Mapping[str, Tensor]],
        statistics: Mapping[tuple[int, str], Float32[Tensor, " heads"]],
    ) -> None:
        """Writes the states behind so many tokens, and the statistics there."""
        tensors = self._named(states)
        tensors |= {f"statistics.{i}.{name}": values for (i, name), values in statistics.items()}
        file = f"position-{position:09d}.safetensors"
        self._write(file, tensors)
        self._index["positions"].append({"position": position, "file": file})

    def add_tokens(
        self, start: int, stop: int, tensors: Mapping[int, Mapping[str, Tensor]]
    ) -> None:
        """Writes what layers cache of the tokens `start` to `stop - 1`."""
        file = f"tokens-{start:09d}-{stop:09d}.safetensors"
        self._write(file, self._named(tensors))
        self._index["tokens"].append({"start": start, "stop": stop, "file": file})

    def write_index(self, *, complete: bool = False) -> None:
        """Replaces the index; `complete` says that nothing follows."""
        self._index["complete"] = complete
        part = self._part(INDEX)
        try:
            part.write_text(json.dumps(self._index) + "\n", encoding="utf-8")
            part.replace(self._path / INDEX)
        finally:
            part.unlink(missing_ok=True)

    def _write(self, file: str, tensors: Mapping[str, Tensor]) -> None:
        part = self._part(file)
        try:
            part.touch(exist_ok=False)
            mode = stat.S_IMODE(part.stat().st_mode)  # as the umask has it
            save_file({name: one.cpu().contiguous() for name, one in tensors.items()}, part)
            part.chmod(mode)  # safetensors lets this user alone read it
            part.replace(self._path / file)
        finally:
            part.unlink(missing_ok=True)

    def _named(self, tensors: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """By the names that they have in a file; the index says what they are."""
        named: dict[str, Tensor] = {}
        for index, of_layer in tensors.items():
            about = self._index["layers"][str(index)]["tensors"]
            for name, tensor in of_layer.items():
                named[f"layers.{index}.{name}"] = tensor
                dtype = str(tensor.dtype).removeprefix("torch.")
                about[name] = {"axes": _axes(self._plans[index], name), "dtype": dtype}
        return named

    def _part(self, file: str) -> Path:
        return self._path / f".{file}.{secrets.token_hex(4)}"


class TraceFiles:
    """The files of a trace that was written, whole or broken off.

    Raises:
        ValueError: the folder has no index of a trace, or something is missing in it.
    """

    def __init__(self, path: Path) -> None:
        file = path / INDEX
        if not file.is_file():
            raise ValueError(f"path={str(path)!r} holds no trace: it has no {INDEX}")
        try:
            index = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:  # of JSON, or of UTF-8
            raise ValueError(f"{file}: is no JSON: {error}") from None
        found = (index.get("format"), index.get("version")) if isinstance(index, dict) else index
        if found != (FORMAT, VERSION):
            raise ValueError(f"{file}: format and version are {found}, not {(FORMAT, VERSION)}")
        _check(file, index, _KEYS, "")
        for key, within in _KEYS_WITHIN.items():
            entries = index[key].items() if key == "layers" else enumerate(index[key])
            for name, entry in entries:
                _check(file, entry, within, f"{key}.{name}.")
        self._path = path
        self.index: dict[str, Any] = index

    @property
    def positions(self) -> tuple[int, ...]:
        """Those whose files are there."""
        return tuple(entry["position"] for entry in self.index["positions"])

    def statistics(self) -> dict[int, dict[str, Float32[np.ndarray, "positions heads"]]]:
        """All of them, by layer and name."""
        rows: dict[tuple[int, str], list[np.ndarray]] = {}
        for entry in self.index["positions"]:
            for key, values in self._read(entry["file"], "statistics.").items():
                layer, name = key.split(".", 1)
                rows.setdefault((int(layer), name), []).append(values.numpy())
        found: dict[int, dict[str, Float32[np.ndarray, "positions heads"]]] = {}
        for (layer, name), values in rows.items():
            found.setdefault(layer, {})[name] = np.stack(values)
        return found

    def states(self, layer: int, position: int) -> dict[str, Tensor]:
        """What a layer held behind so many tokens; of tokens those of the trace."""
        if self.index["layers"][str(layer)]["kind"] == "state":
            entry = next(e for e in self.index["positions"] if e["position"] == position)
            return self._read(entry["file"], f"layers.{layer}.")
        parts: dict[str, list[Tensor]] = {}
        start = stop = 0
        for entry in self.index["tokens"]:
            if entry["start"] < position:
                start, stop = start if parts else entry["start"], entry["stop"]
                for name, tensor in self._read(entry["file"], f"layers.{layer}.").items():
                    parts.setdefault(name, []).append(tensor)
        rate = self.index["layers"][str(layer)]["tokens_per_entry"]
        count = min(position, stop) // rate - start // rate
        return {name: torch.cat(found)[:count] for name, found in parts.items()}

    def _read(self, file: str, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, by the rest of their names."""
        try:
            with safe_open(self._path / file, "pt") as opened:
                names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118
                return {name.removeprefix(prefix): opened.get_tensor(name) for name in names}
        except SafetensorError as error:
            raise ValueError(f"{self._path / file}: is damaged: {error}") from None


def _check(file: Path, entry: Any, keys: Mapping[str, type], where: str) -> None:
    """Refuses what has not these keys, with values of these types."""
    for key, kind in keys.items():
        if not isinstance(entry, dict) or key not in entry:
            raise ValueError(f"{file}: is damaged: it has no {where}{key}")
        if type(entry[key]) is not kind:
            found = reprlib.repr(entry[key])
            raise ValueError(f"{file}: is damaged: {where}{key}={found} should be {_NAMES[kind]}")


def _about_layers(plans: Mapping[int, LayerPlan]) -> dict[str, dict[str, Any]]:
    """What the index says of each layer; its tensors are noted when they are written."""
    return {
        str(index): {
            "name": plan.name,
            "mixer": plan.mixer,
            "kind": plan.kind,
            "tokens_per_entry": plan.tokens_per_entry,
            "tensors": {},
        }
        for index, plan in plans.items()
    }
