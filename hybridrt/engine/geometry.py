"""Geometries: which layers a model has and what each caches, with no model behind them.

    {"name": ..., "layers": [
        {"kind": "attention", "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"},
        {"kind": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "dtype": "bfloat16"},
        {"kind": "state", "states": [["conv_state", [3, 8192], "bfloat16"], ...]}]}

A layer may have `"repeat": n`. Planners and schedulers are compared on such files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt, field_validator

from hybridrt.cache.spec import Cached, CacheSpec, State, Window
from hybridrt.config import EngineConfig
from hybridrt.engine.checkpoint import read_json_object
from hybridrt.values import Value

_DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2")
}
_Dtype = Literal["float32", "bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The cached layers of a model by name, as the planner takes them."""

    name: str
    layers: Mapping[str, Cached]


class AttentionGeometry(Value):
    """Keys and values of every token, or of those in a `window`, which is sliding or chunked.

    `head_dim_v` is the size of values, if it is another.
    """

    kind: Literal["attention"]
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    head_dim_v: PositiveInt | None = None
    dtype: _Dtype
    window: PositiveInt | None = None
    chunked: bool = False

    def spec(self, config: EngineConfig) -> CacheSpec:
        """What a kernel block holds."""
        heads, tokens = self.num_kv_heads, _kernel_block_size(config)
        axes = (heads, tokens) if config.kv_layout == "HND" else (tokens, heads)
        content = self.head_dim + (self.head_dim_v or self.head_dim)
        kv = (State("kv", (*axes, content), _DTYPES[self.dtype]),)
        if self.window is None:
            return CacheSpec("full", kv, tokens)
        return CacheSpec("window", kv, tokens, Window(self.window, self.chunked))


class MLAGeometry(Value):
    """A latent and a rotary key of every token."""

    kind: Literal["mla"]
    kv_lora_rank: PositiveInt
    qk_rope_head_dim: PositiveInt
    dtype: _Dtype

    def spec(self, config: EngineConfig) -> CacheSpec:
        """What a kernel block holds."""
        tokens = _kernel_block_size(config)
        sizes = {"c_kv": self.kv_lora_rank, "k_pe": self.qk_rope_head_dim}
        dtype = _DTYPES[self.dtype]
        states = tuple(State(name, (tokens, size), dtype) for name, size in sizes.items())
        return CacheSpec("full", states, tokens)


class StateGeometry(Value):
    """States of a sequence, each `[name, shape, dtype]`."""

    kind: Literal["state"]
    states: Annotated[list[tuple[str, list[PositiveInt], _Dtype]], Field(min_length=1)]

    @field_validator("states", mode="before")
    @classmethod
    def _as_tuples(cls, states: Any) -> Any:
        if not isinstance(states, list):
            return states
        return [tuple(state) if isinstance(state, list) else state for state in states]

    def spec(self, config: EngineConfig) -> CacheSpec:
        """What a page holds, whatever the config says."""
        states = (State(name, tuple(shape), _DTYPES[dtype]) for name, shape, dtype in self.states)
        return CacheSpec("state", tuple(states))


_KINDS = {"attention": AttentionGeometry, "mla": MLAGeometry, "state": StateGeometry}


def _kernel_block_size(config: EngineConfig) -> int:
    return config.kernel_block_size or config.page_size


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer as the planner takes it."""

    mixer: str
    cache_spec: CacheSpec

    def supports_kernel_block_size(self, tokens: int) -> bool:
        """Any: no kernel runs here."""
        return True


def load_geometry(path: Path, config: EngineConfig) -> Geometry:
    """The geometry in a file, its layers packed as `config` says.

    Raises:
        ValueError: the file is not a geometry, or has layers that can't be planned.
    """
    raw = read_json_object(path)
    entries = raw.get("layers")
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path}: layers should be a list of at least one layer")
    if config.cache_policy == "contiguous" and config.max_model_len is None:
        raise ValueError("the cache policy 'contiguous' needs max_model_len beside a geometry")
    mixer = str(raw.get("mixer", "state"))
    layers: dict[str, Cached] = {}
    for number, entry in enumerate(entries):
        layer, repeat = _read_layer(f"{path}: layers[{number}]", entry, mixer, config)
        layers.update({f"layers.{len(layers) + n}": layer for n in range(repeat)})
    return Geometry(str(raw.get("name", path.stem)), layers)


def _read_layer(where: str, entry: Any, mixer: str, config: EngineConfig) -> tuple[Cached, int]:
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if kind not in _KINDS:
        raise ValueError(f"{where}: kind={kind!r} should be one of {', '.join(_KINDS)}")
    fields = {key: value for key, value in entry.items() if key != "repeat"}
    repeat = entry.get("repeat", 1)
    if type(repeat) is not int or repeat < 1:
        raise ValueError(f"{where}: repeat={repeat!r} should be a whole number from 1 on")
    try:
        spec = _KINDS[kind](**fields).spec(config)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    layer = _Layer(mixer if kind == "state" else kind, spec)
    return layer, repeat
