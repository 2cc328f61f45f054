"""The plan: how many bytes a slab, a page and a kernel block of each group take.

Layers of the same kind and the same tokens per kernel block form a group and
share one page table. Every group cuts a slab into its own whole number of equal
pages (see docs/cache.md for why this wastes so little), and everything is known
before a byte is allocated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hybridrt.cache.cuts import Cut, find_cuts
from hybridrt.cache.spec import Cached, CacheSpec, Kind
from hybridrt.config import EngineConfig


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group. `page_bytes` is what its layers need, `page_stride` what a page gets."""

    name: str
    kind: Kind
    layers: tuple[str, ...]
    page_size: int | None
    kernel_block_size: int | None
    page_bytes: int
    page_stride: int
    pages_per_slab: int

    @property
    def blocks_per_page(self) -> int:
        """Kernel blocks in a page; a state's page is one block."""
        return 1 if self.page_size is None else self.page_size // (self.kernel_block_size or 1)

    @property
    def block_stride(self) -> int:
        """Bytes from one kernel block to the next."""
        return self.page_stride // self.blocks_per_page

    @property
    def padding_percent(self) -> float:
        """The share of a page that no layer uses."""
        return 100 * (1 - self.page_bytes / self.page_stride)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that a sequence of that many tokens holds."""
        if num_tokens <= 0:
            return 0
        return 1 if self.page_size is None else -(-num_tokens // self.page_size)


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One cached layer. `offset` is its first byte within a kernel block of its group."""

    index: int
    name: str
    kind: Kind
    mixer: str
    group: str
    page_size: int | None
    kernel_block_size: int | None
    bytes_per_page: int
    bytes_per_token: int
    bytes_per_sequence: int
    states: tuple[tuple[str, tuple[int, ...], str], ...]
    offset: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Sizes of everything in the pool `uint8[num_slabs, slab_bytes]`."""

    slab_bytes: int
    num_slabs: int
    groups: tuple[GroupPlan, ...]
    layers: tuple[LayerPlan, ...]

    @property
    def pool_bytes(self) -> int:
        return self.slab_bytes * self.num_slabs

    @property
    def padding_percent(self) -> float:
        """The largest share of a page that no layer uses, over the groups."""
        return max((group.padding_percent for group in self.groups), default=0.0)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that grow with every token of a sequence, over all layers."""
        return sum(layer.bytes_per_token for layer in self.layers)

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes that every sequence takes whatever its length, over all layers."""
        return sum(layer.bytes_per_sequence for layer in self.layers)

    def group(self, name: str) -> GroupPlan:
        """The group of that name."""
        return next(group for group in self.groups if group.name == name)

    def slabs_for(self, num_tokens: int, num_sequences: int = 1) -> int:
        """Slabs that so many sequences of so many tokens each need, with no other running."""
        return sum(
            -(-num_sequences * group.pages_for(num_tokens) // group.pages_per_slab)
            for group in self.groups
        )

    def sequences_of(self, num_tokens: int) -> int | None:
        """How many sequences of that length fit at once; None: any number, nothing is cached."""
        if num_tokens <= 0:
            return None
        return _largest(lambda count: self.slabs_for(num_tokens, count) <= self.num_slabs, self)

    def longest_sequence(self) -> int | None:
        """Tokens of the longest sequence that fits alone; None: any length does."""
        if all(group.page_size is None for group in self.groups):
            return None if self.slabs_for(1) <= self.num_slabs else 0
        return _largest(lambda tokens: self.slabs_for(tokens) <= self.num_slabs, self)

    def explain(self) -> str:
        """The plan as a table for people."""
        from hybridrt.cache.explain import explain

        return explain(self)


def plan(layers: Mapping[str, Cached], config: EngineConfig, memory: int) -> CachePlan:
    """Sizes the cache of these layers, by name, for `memory` bytes.

    `config` gives `page_size`, `kernel_block_size` and `cache_policy`; with the
    policy `contiguous` it gives `max_model_len` too, the tokens of the one page.

    Every layer has its `CacheFormat` already, with the kernel block size that
    `token_sizes(config)` gives.

    Raises:
        ValueError: `memory` doesn't hold one page of every group.
    """
    page_size, _ = token_sizes(config)
    specs = {name: layer.cache_spec for name, layer in layers.items()}
    members = _group(specs)
    pages = [_page_need(specs, names, page_size) for names in members.values()]
    cut = find_cuts([need for need, _ in pages], [r for _, r in pages], memory)
    groups = tuple(
        _group_plan(name, names, specs, page_size, need, n, cut)
        for (name, names), (need, _), n in zip(members.items(), pages, cut.counts, strict=True)
    )
    return CachePlan(cut.slab_bytes, cut.num_slabs, groups, _layer_plans(layers, specs, groups))


def token_sizes(config: EngineConfig) -> tuple[int, int]:
    """Tokens of a page and of a kernel block."""
    if config.cache_policy == "paged":
        return config.page_size, config.kernel_block_size or config.page_size
    assert config.max_model_len is not None, "the engine sets it before it plans"
    block = config.kernel_block_size or config.page_size
    return -(-config.max_model_len // block) * block, block


def _group(specs: Mapping[str, CacheSpec]) -> dict[str, list[str]]:
    """Group name -> layer names. One format holds for all layers, so a kind is a group."""
    members: dict[str, list[str]] = {}
    for name, spec in specs.items():
        members.setdefault(spec.kind, []).append(name)
    return members


def _page_need(
    specs: Mapping[str, CacheSpec], names: Sequence[str], page_size: int
) -> tuple[int, int]:
    """Bytes that a page of these layers needs, and its number of kernel blocks."""
    tokens = specs[names[0]].tokens
    blocks = 1 if tokens is None else page_size // tokens
    return blocks * sum(specs[name].block_bytes for name in names), blocks


def _group_plan(
    name: str,
    names: Sequence[str],
    specs: Mapping[str, CacheSpec],
    page_size: int,
    page_bytes: int,
    count: int,
    cut: Cut,
) -> GroupPlan:
    spec = specs[names[0]]
    return GroupPlan(
        name=name,
        kind=spec.kind,
        layers=tuple(names),
        page_size=None if spec.tokens is None else page_size,
        kernel_block_size=spec.tokens,
        page_bytes=page_bytes,
        page_stride=cut.slab_bytes // count,
        pages_per_slab=count,
    )


def _layer_plans(
    layers: Mapping[str, Cached], specs: Mapping[str, CacheSpec], groups: Sequence[GroupPlan]
) -> tuple[LayerPlan, ...]:
    group_of = {name: group for group in groups for name in group.layers}
    next_offset = dict.fromkeys((group.name for group in groups), 0)
    plans: list[LayerPlan] = []
    for index, (name, layer) in enumerate(layers.items()):
        spec, group = specs[name], group_of[name]
        plans.append(_layer_plan(index, name, layer, spec, group, next_offset[group.name]))
        next_offset[group.name] += spec.block_bytes
    return tuple(plans)


def _layer_plan(
    index: int, name: str, layer: Cached, spec: CacheSpec, group: GroupPlan, offset: int
) -> LayerPlan:
    state_bytes = sum(state.num_bytes for state in spec.states)
    return LayerPlan(
        index=index,
        name=name,
        kind=spec.kind,
        mixer=layer.mixer,
        group=group.name,
        page_size=group.page_size,
        kernel_block_size=group.kernel_block_size,
        bytes_per_page=group.blocks_per_page * spec.block_bytes,
        bytes_per_token=state_bytes // spec.tokens if spec.tokens else 0,
        bytes_per_sequence=0 if spec.tokens else state_bytes,
        states=tuple(
            (state.name, state.shape, str(state.dtype).removeprefix("torch."))
            for state in spec.states
        ),
        offset=offset,
        block_bytes=spec.block_bytes,
    )


def _largest(fits: Callable[[int], bool], plan: CachePlan) -> int | None:
    """The largest number that fits, which every smaller one does too."""
    if not plan.groups:
        return None
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
