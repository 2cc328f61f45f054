"""Rotary position embeddings (RoFormer, arXiv 2104.09864) and the ways to stretch them.

Names and values follow `rope_parameters` of a Hugging Face config; older files have
`rope_theta` and `rope_scaling` instead, which `read_rope_parameters` puts together.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from pydantic import ConfigDict, PositiveInt, model_validator
from torch import Tensor

from hybridrt.kernels.rotate import rotate, rotate_and_norm, rotate_normed
from hybridrt.values import Value


class RopeConfig(Value):
    """`rope_parameters`. Which of them count depends on `rope_type`; see `Rope`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    rope_type: Literal[
        "default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"
    ] = "default"
    rope_theta: float = 10_000.0
    factor: float | None = None
    partial_rotary_factor: float | None = None
    max_position_embeddings: PositiveInt | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool = True
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factor: list[float] | None = None
    long_factor: list[float] | None = None

    @model_validator(mode="after")
    def _complete(self) -> "RopeConfig":
        needs = {
            "linear": ["factor"],
            "dynamic": ["factor", "max_position_embeddings"],
            "llama3": ["factor", "original_max_position_embeddings"],
            "yarn": ["original_max_position_embeddings"],
            "longrope": ["short_factor", "long_factor", "original_max_position_embeddings"],
        }
        missing = [key for key in needs.get(self.rope_type, []) if getattr(self, key) is None]
        if missing:
            raise ValueError(f"rope_type {self.rope_type!r} needs {missing}")
        return self

    @property
    def scale(self) -> float:
        """The factor by which positions are stretched; without one, the ratio of lengths."""
        if self.factor is not None:
            return self.factor
        if self.max_position_embeddings and self.original_max_position_embeddings:
            return self.max_position_embeddings / self.original_max_position_embeddings
        return 1.0


def read_rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary settings of a `config.json`, from its new or its old keys.

    As transformers resolves them: `rope_scaling` replaces `rope_parameters`; a
    `rope_theta` inside comes before one outside, and `rope_type` before `type`; an
    `original_max_position_embeddings` outside comes before one inside.
    """
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    legacy_type = rope.pop("type", None)
    rope.setdefault("rope_type", legacy_type or "default")
    rope.setdefault("rope_theta", config.get("rope_theta") or 10_000.0)
    longest = config.get("max_position_embeddings")
    rope["max_position_embeddings"] = longest
    original = config.get("original_max_position_embeddings")
    if original is not None:
        rope["original_max_position_embeddings"] = original
    elif rope["rope_type"] in ("llama3", "yarn", "longrope"):
        rope.setdefault("original_max_position_embeddings", longest)
    return rope


def rope_by_layer_type(
    config: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]]
) -> dict[str, RopeConfig]:
    """`rope_parameters` of a model that has them apart for each type of layer.

    `defaults` has what holds for each type if the config doesn't say it: all of an entry
    that is not there, the `rope_theta` of one that is.

    Raises:
        ValueError: an entry is of no known type of layer, or not what `RopeConfig` takes.
    """
    given = config.get("rope_parameters") or {}
    unknown = sorted(key for key in given.keys() - defaults.keys() if given[key] is not None)
    if unknown:
        raise ValueError(
            f"config.json: rope_parameters has {unknown}; should have settings of each of "
            f"{sorted(defaults)}"
        )
    found: dict[str, RopeConfig] = {}
    for layer_type, default in defaults.items():
        entry = given.get(layer_type) or default
        entry = {"rope_theta": default["rope_theta"], **entry}
        longest = config.get("max_position_embeddings")
        whole = {"rope_parameters": entry, "max_position_embeddings": longest}
        found[layer_type] = RopeConfig(**read_rope_parameters(whole))
    return found


def yarn_mscale(scale: float, mscale: float = 1.0) -> float:
    """YaRN's correction of attention for stretched positions (arXiv 2309.00071, eq. 22)."""
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


class Rope:
    """Tables of cosines and sines for positions `0 .. max_model_len - 1`.

    `dim` of the head's first values are rotated, in pairs `(j, j + dim/2)`, or
    `(2j, 2j + 1)` if `interleaved`. Two scalings depend on the length of the whole
    sequence, which a cache can't follow, as it holds rotated keys:

    - `dynamic` equals `default` up to `max_position_embeddings`, and `longest_exact`
      says that this is as far as it can be used;
    - `longrope` has two sets of frequencies, for sequences within and beyond
      `switch_length` tokens. The tables of both stand one behind the other: a longer
      sequence adds `switch_length` to its positions (`rope_positions`), and one that
      grows beyond it is computed again.
    """

    def __init__(self, config: RopeConfig, dim: int, interleaved: bool = False) -> None:
        if dim % 2:
            raise ValueError(f"{dim} dimensions of a head can't be rotated in pairs")
        self.config = config
        self.dim = dim
        self.interleaved = interleaved
        self.attention_factor = _attention_factor(config)
        self.frequency_factors: Float[Tensor, " half"] | None = None  # learned; by which to turn
        self._table = torch.empty(0)

    @property
    def longest_exact(self) -> int | None:
        """Tokens up to which cached keys stay right; None: always."""
        return self.config.max_position_embeddings if self.config.rope_type == "dynamic" else None

    @property
    def switch_length(self) -> int | None:
        """The length beyond which a sequence uses the second table; None: there is one."""
        if self.config.rope_type != "longrope":
            return None
        return self.config.original_max_position_embeddings

    def prepare(self, max_model_len: int, device: torch.device) -> None:
        """Computes the tables, in float32."""
        if self.switch_length is None:
            table = self._angles(_frequencies(self.config, self.dim), max_model_len)
        else:
            short, long = (_longrope(self.config, self.dim, beyond) for beyond in (False, True))
            table = torch.cat(
                [self._angles(short, self.switch_length), self._angles(long, max_model_len)]
            )
        self._table = (self.attention_factor * table).to(device)

    def _angles(self, frequencies: Float[Tensor, " half"], length: int) -> Tensor:
        if self.frequency_factors is not None:
            frequencies = frequencies * self.frequency_factors.float().cpu()
        angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
        return torch.stack([angles.cos(), angles.sin()], dim=1)

    def apply(
        self,
        x: Float[Tensor, "tokens heads head_dim"],
        rope_positions: Int64[Tensor, " tokens"],
        *,
        back: bool = False,
    ) -> Float[Tensor, "tokens heads head_dim"]:
        """Rotates the first `dim` values of every head by its token's position, or `back`."""
        return rotate(x, self._table, rope_positions, self.interleaved, back)

    def apply_normed(
        self,
        q: Float[Tensor, "tokens heads head_dim"],
        k: Float[Tensor, "tokens kv_heads head_dim"],
        weights: tuple[Float[Tensor, " head_dim"], Float[Tensor, " head_dim"]],
        eps: float,
        offset: float,
        rope_positions: Int64[Tensor, " tokens"],
    ) -> tuple[Tensor, Tensor]:
        """`apply` of `rms_norm(part, weight, eps, offset)` of queries and of keys."""
        where = (self._table, rope_positions, self.interleaved)
        return rotate_normed(q, k, *weights, eps, offset, *where)

    def apply_beside_norm(
        self,
        q: Float[Tensor, "tokens heads head_dim"],
        k: Float[Tensor, "tokens kv_heads head_dim"],
        latents: Float[Tensor, "tokens size"],
        weight: Float[Tensor, " size"],
        eps: float,
        offset: float,
        rope_positions: Int64[Tensor, " tokens"],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`apply` of queries and of keys, and `rms_norm(latents, weight, eps, offset)`."""
        where = (self._table, rope_positions, self.interleaved)
        return rotate_and_norm(q, k, latents, weight, eps, offset, *where)

    def apply_to_last(
        self,
        x: Float[Tensor, "tokens heads head_dim"],
        rope_positions: Int64[Tensor, " tokens"],
        *,
        back: bool = False,
    ) -> Float[Tensor, "tokens heads head_dim"]:
        """The same with the last `dim` values of every head."""
        kept, rotated = x.split([x.shape[-1] - self.dim, self.dim], dim=-1)
        return torch.cat([kept, self.apply(rotated, rope_positions, back=back)], dim=-1)


def _attention_factor(config: RopeConfig) -> float:
    """What cosines and sines are multiplied by."""
    if config.rope_type not in ("yarn", "longrope"):
        return 1.0
    if config.attention_factor is not None:
        return config.attention_factor
    scale = config.scale
    if config.rope_type == "yarn":
        if config.mscale and config.mscale_all_dim:
            return yarn_mscale(scale, config.mscale) / yarn_mscale(scale, config.mscale_all_dim)
        return yarn_mscale(scale)
    assert config.original_max_position_embeddings is not None
    if scale <= 1:
        return 1.0
    return math.sqrt(1 + math.log(scale) / math.log(config.original_max_position_embeddings))


def _default(config: RopeConfig, dim: int) -> Float[Tensor, " half"]:
    return config.rope_theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _frequencies(config: RopeConfig, dim: int) -> Float[Tensor, " half"]:
    """Radians per position of each pair."""
    base = _default(config, dim)
    if config.rope_type == "proportional":
        # All of a head is laid out in pairs, and the slow ones of them stand still.
        share = 1.0 if config.partial_rotary_factor is None else config.partial_rotary_factor
        turning = torch.arange(dim // 2) < int(share * dim // 2)
        return base / (config.factor or 1.0) * turning
    if config.rope_type == "linear":
        return base / config.scale
    if config.rope_type == "llama3":
        return _llama3(config, base)
    if config.rope_type == "yarn":
        return _yarn(config, base, dim)
    return base


def _llama3(config: RopeConfig, base: Float[Tensor, " half"]) -> Float[Tensor, " half"]:
    """Long wavelengths are stretched, short ones kept, those between blended (Llama 3.1)."""
    assert config.original_max_position_embeddings is not None
    turns = config.original_max_position_embeddings * base / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return base * (kept + (1 - kept) / config.scale)


def _yarn(config: RopeConfig, base: Float[Tensor, " half"], dim: int) -> Float[Tensor, " half"]:
    """Pairs that turn often are kept, those that turn rarely stretched (arXiv 2309.00071)."""
    low = _pair_with_turns(config, config.beta_fast or 32, dim)
    high = _pair_with_turns(config, config.beta_slow or 1, dim)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    pairs = torch.arange(dim // 2, dtype=torch.float32)
    stretched = ((pairs - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return base * (stretched / config.scale + 1 - stretched)


def _pair_with_turns(config: RopeConfig, turns: float, dim: int) -> float:
    """The index, not whole, of the pair that turns so often over the original length."""
    assert config.original_max_position_embeddings is not None
    wavelength = config.original_max_position_embeddings / (turns * 2 * math.pi)
    return dim * math.log(wavelength) / (2 * math.log(config.rope_theta))


def _longrope(config: RopeConfig, dim: int, beyond: bool) -> Float[Tensor, " half"]:
    """Each pair has a factor of its own (LongRoPE, arXiv 2402.13753)."""
    factors = config.long_factor if beyond else config.short_factor
    assert factors is not None
    if len(factors) != dim // 2:
        name = "long_factor" if beyond else "short_factor"
        raise ValueError(f"rope {name} has {len(factors)} values; {dim} dimensions need {dim // 2}")
    return _default(config, dim) / torch.tensor(factors)
