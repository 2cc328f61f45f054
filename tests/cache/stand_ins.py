"""Layers and plans of any sizes, without a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hybridrt.cache.cuts import Need, Split, find_cuts, whole
from hybridrt.cache.plan import CachePlan, GroupPlan
from hybridrt.cache.planner import plan
from hybridrt.cache.pool import Pool
from hybridrt.cache.spec import CacheSpec, Kind, State, Window
from hybridrt.config import EngineConfig

CPU = torch.device("cpu")


@dataclass(frozen=True)
class StandIn:
    """What the planner asks of a layer, and no more."""

    cache_spec: CacheSpec
    kernel_block_sizes: tuple[int, ...] | None = None  # that its kernels take; None: any
    mixer: str = "stand-in"

    def supports_kernel_block_size(self, tokens: int) -> bool:
        return self.kernel_block_sizes is None or tokens in self.kernel_block_sizes


def attention(
    bytes_per_token: int,
    tokens: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    window: Window | None = None,
) -> StandIn:
    """A layer of the kind `full`, or `window` if there is one; `tokens` a kernel block."""
    per_token = bytes_per_token // dtype.itemsize
    states = (State("kv", (tokens, per_token), dtype),)
    return StandIn(CacheSpec("window" if window else "full", states, tokens, window))


def recurrent(conv_numbers: int, ssm_numbers: int) -> StandIn:
    """A layer of the kind `state`, with a bfloat16 state before a float32 one."""
    conv_state = State("conv_state", (conv_numbers,), torch.bfloat16)
    ssm_state = State("ssm_state", (ssm_numbers,), torch.float32)
    return StandIn(CacheSpec("state", (conv_state, ssm_state)))


def plan_of(layers: Sequence[StandIn], memory: int, **options: Any) -> CachePlan:
    """The plan of these layers, named `layer.0` and so on."""
    named = {f"layer.{index}": layer for index, layer in enumerate(layers)}
    return plan(named, EngineConfig(model="stand-in", **options), memory)


@dataclass(frozen=True)
class Group:
    """A group to be: `page_size=None` is the kind `state`, in `parts` pages a sequence;
    else there are `r` kernel blocks in a page.
    """

    page_bytes: int
    page_size: int | None = None
    r: int = 1
    window: Window | None = None
    parts: int = 1

    @property
    def kind(self) -> Kind:
        if self.page_size is None:
            return "state"
        return "full" if self.window is None else "window"

    @property
    def need(self) -> Need:
        if self.page_size is not None:
            return whole(self.page_bytes, self.r)
        split = Split(tuple(range(self.parts)), self.page_bytes)
        return Need(self.parts * self.page_bytes, 1, (split,))


def plan_for(groups: Sequence[Group], num_slabs: int) -> CachePlan:
    """A plan of `num_slabs` slabs for any number of groups."""
    cut = find_cuts([group.need for group in groups], 2**20)
    plans = tuple(
        GroupPlan(
            name=f"group-{index}",
            kind=group.kind,
            layers=(),
            page_size=group.page_size,
            kernel_block_size=None if group.page_size is None else group.page_size // group.r,
            page_bytes=group.page_bytes,
            page_stride=cut.slab_bytes // count,
            pages_per_slab=count,
            window=group.window,
            parts=group.parts,
            sequence_bytes=0 if group.page_size else group.parts * group.page_bytes,
        )
        for index, (group, count) in enumerate(zip(groups, cut.counts, strict=True))
    )
    return CachePlan(cut.slab_bytes, num_slabs, plans, ())


def pool_of(groups: Sequence[Group], num_slabs: int, *, poison: bool = True) -> Pool:
    """A pool of `num_slabs` slabs for any number of groups."""
    return Pool(plan_for(groups, num_slabs), CPU, poison_freed_pages=poison)
