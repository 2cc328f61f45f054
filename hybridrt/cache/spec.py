"""What one layer stores in one kernel block.

A kernel block is a run of bytes; it has no shape of its own. A `CacheSpec`
names the tensors a layer packs into it, in order. The planner asks the spec
how many bytes to allow and the layer asks it for views, so the two can never
disagree.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol

import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

ALIGNMENT = 16  # bytes: the widest vector load, and a multiple of every itemsize

INPUTS = ("inputs", "channels")  # the axes of a convolution's last inputs, the oldest first

Kind = Literal["full", "window", "state"]
"""What is kept of a sequence: every token, the last ones that are still seen, or one state."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which tokens a token sees: the last `size`, itself included, or with `chunked` those
    of its own chunk of `size` tokens (Llama 4). What no later token sees can be given back.
    """

    size: int
    chunked: bool = False

    def first_visible(self, position: int) -> int:
        """The first token that the one at `position` sees. No later one sees an earlier."""
        if self.chunked:
            return position // self.size * self.size
        return max(0, position - self.size + 1)

    def unseen_from(self, token: int) -> int:
        """The first position at which `token` is not seen any more."""
        if self.chunked:
            return (token // self.size + 1) * self.size
        return token + self.size


def align(num_bytes: int) -> int:
    """`num_bytes` rounded up to a multiple of `ALIGNMENT`."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def entries_of_block(tokens: int, tokens_per_entry: int) -> int:
    """The most entries that end in a kernel block of that many tokens."""
    return -(-tokens // tokens_per_entry)


@dataclass(frozen=True, slots=True)
class State:
    """One named tensor of a layer's cache, e.g. `State("ssm_state", (24, 64, 128), float32)`.

    Token kinds have the tokens of a kernel block as one axis of the shape. Where several
    tokens leave one entry together, `tokens_per_entry`, that axis is `entries_of_block`: an
    entry stands in the block of the last of its tokens. Any size of block holds them; one
    that is a multiple of `tokens_per_entry` has no place that stays empty.

    `axes` names the axes of a state for whoever reads it. Of what is kept of every token the
    names follow from the layer's class; see `hybridrt.engine.read_cache`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    tokens_per_entry: int = 1
    axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert not self.axes or len(self.axes) == len(self.shape), (self.name, self.axes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor itself, without alignment."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The states one layer packs into a kernel block, in order, each 16-byte aligned.

    `tokens` is the number of tokens in the block, None for the kind `state`,
    whose one block a page holds a whole sequence. `window` is that of the kind `window`.
    """

    kind: Kind
    states: tuple[State, ...]
    tokens: int | None = None
    window: Window | None = None

    def __post_init__(self) -> None:
        assert (self.kind == "state") == (self.tokens is None), (self.kind, self.tokens)
        assert (self.kind == "window") == (self.window is not None), (self.kind, self.window)

    @property
    def block_bytes(self) -> int:
        """Bytes of one kernel block of this layer, alignment included."""
        return sum(align(state.num_bytes) for state in self.states)

    def unpack(self, pages: UInt8[Tensor, "num_blocks layer_bytes"]) -> tuple[Tensor, ...]:
        """Returns one `[num_blocks, *state.shape]` view per state. Copies nothing.

        Raises:
            ValueError: a row of `pages` is not `block_bytes` long.
        """
        if pages.shape[1] != self.block_bytes:
            raise ValueError(
                f"pages of {pages.shape[1]} bytes can't hold the states "
                f"{[state.name for state in self.states]}, which take {self.block_bytes}"
            )
        views: list[Tensor] = []
        offset = 0
        for state in self.states:
            views.append(_view(pages[:, offset : offset + state.num_bytes], state))
            offset += align(state.num_bytes)
        return tuple(views)


def _view(raw: UInt8[Tensor, "num_blocks num_bytes"], state: State) -> Shaped[Tensor, "..."]:
    return raw.view(state.dtype).unflatten(1, state.shape)


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """What a user chooses of how layers pack their pages; the engine gives it to every layer.

    `kernel_block_size` is that of the layer's group. `kv_cache_dtype` is `"auto"` (the
    model's dtype), `"fp8_e4m3"` or `"int8"`.
    """

    kernel_block_size: int = 16
    kv_layout: Literal["HND", "NHD"] = "HND"
    kv_cache_dtype: Literal["auto", "fp8_e4m3", "int8"] = "auto"
    state_dtype: torch.dtype = torch.float32


class Cached(Protocol):
    """What the planner asks of a layer that caches something."""

    @property
    def mixer(self) -> str:
        """What the layer computes: `attention`, `mla`, `mamba1` ..."""
        ...

    @property
    def cache_spec(self) -> CacheSpec:
        """What the layer stores in one kernel block."""
        ...

    def supports_kernel_block_size(self, tokens: int) -> bool:
        """Whether the layer's kernels can index blocks of that many tokens."""
        ...
