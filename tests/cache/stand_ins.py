"""Layers and plans of any sizes, without a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from hybridrt.cache.cuts import find_cuts
from hybridrt.cache.plan import CachePlan, GroupPlan, plan
from hybridrt.cache.pool import Pool
from hybridrt.cache.spec import CacheSpec, State
from hybridrt.config import EngineConfig

CPU = torch.device("cpu")


@dataclass(frozen=True)
class StandIn:
    """What the planner asks of a layer, and no more."""

    mixer: ClassVar[str] = "stand-in"
    cache_spec: CacheSpec


def attention(
    bytes_per_token: int, tokens: int = 16, dtype: torch.dtype = torch.bfloat16
) -> StandIn:
    """A layer of the kind `full`; `tokens` a kernel block."""
    per_token = bytes_per_token // dtype.itemsize
    return StandIn(CacheSpec("full", (State("kv", (tokens, per_token), dtype),), tokens))


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
    """A group to be: `page_size=None` is the kind `state`; `r` kernel blocks in a page."""

    page_bytes: int
    page_size: int | None = None
    r: int = 1


def pool_of(groups: Sequence[Group], num_slabs: int, *, poison: bool = True) -> Pool:
    """A pool of `num_slabs` slabs for any number of groups."""
    needs = [group.page_bytes for group in groups]
    blocks = [group.r for group in groups]
    cut = find_cuts(needs, blocks, 2**20)
    plans = tuple(
        GroupPlan(
            name=f"group-{index}",
            kind="state" if group.page_size is None else "full",
            layers=(),
            page_size=group.page_size,
            kernel_block_size=None if group.page_size is None else group.page_size // group.r,
            page_bytes=group.page_bytes,
            page_stride=cut.slab_bytes // count,
            pages_per_slab=count,
        )
        for index, (group, count) in enumerate(zip(groups, cut.counts, strict=True))
    )
    whole = CachePlan(cut.slab_bytes, num_slabs, plans, ())
    return Pool(whole, CPU, poison_freed_pages=poison)
