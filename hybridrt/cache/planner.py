"""The planner: sorts layers into groups, and finds the plan of their cache.

Layers of the same kind and window form a group and share one page table.
"""

from collections.abc import Mapping, Sequence

from hybridrt.cache.cuts import Cut, Need, Split, find_cuts, splittable, whole
from hybridrt.cache.plan import CachePlan, GroupPlan, LayerPlan
from hybridrt.cache.spec import Cached, CacheSpec
from hybridrt.config import EngineConfig


def plan(layers: Mapping[str, Cached], config: EngineConfig, memory: int) -> CachePlan:
    """Sizes the cache of these layers, by name, for `memory` bytes.

    `config` gives `page_size` and `cache_policy`; with the policy `contiguous` it gives
    `max_model_len` too, the tokens of the one page. Every layer has its `CacheFormat`
    already, with the kernel block size that `choose_kernel_block_sizes` gives.

    Raises:
        ValueError: `memory` doesn't hold one page of every group.
    """
    page_size = tokens_of_a_page(config)
    specs = {name: layer.cache_spec for name, layer in layers.items()}
    members = _group(specs)
    cut = find_cuts([_need(specs, names, page_size) for names in members.values()], memory)
    groups = tuple(
        _group_plan(name, names, specs, page_size, cut, index)
        for index, (name, names) in enumerate(members.items())
    )
    rows: dict[str, LayerPlan] = {}
    for group, split in zip(groups, cut.splits, strict=True):
        rows |= _layer_plans(group, split, layers, specs)
    return CachePlan(cut.slab_bytes, cut.num_slabs, groups, tuple(rows[name] for name in layers))


def tokens_of_a_page(config: EngineConfig) -> int:
    """`page_size`, or `max_model_len` in whole pages where each sequence has one run."""
    if config.cache_policy == "paged":
        return config.page_size
    assert config.max_model_len is not None, "the engine sets it before it plans"
    return -(-config.max_model_len // config.page_size) * config.page_size


def choose_kernel_block_sizes(layers: Mapping[str, Cached], config: EngineConfig) -> dict[str, int]:
    """Tokens of a kernel block by layer: those asked for, or in each group the most that
    the kernels of all its layers can index.

    Raises:
        ValueError: a layer's kernels can't index blocks of the size asked for, or of any.
    """
    asked = config.kernel_block_size
    divisors = [n for n in range(config.page_size, 0, -1) if config.page_size % n == 0]
    sizes: dict[str, int] = {}
    for names in _group({name: layer.cache_spec for name, layer in layers.items()}).values():
        candidates = divisors if asked is None else [asked]
        usable = [n for n in candidates if _supported(layers, names, n)]
        if not usable:
            wrong = next(name for name in names if not _supported(layers, [name], candidates[0]))
            raise ValueError(
                f"{wrong}: its kernels can't index blocks of "
                f"{' or '.join(map(str, candidates))} tokens; choose another kernel_block_size, "
                f"page_size or attention_backend"
            )
        sizes.update(dict.fromkeys(names, usable[0]))
    return sizes


def _supported(layers: Mapping[str, Cached], names: Sequence[str], tokens: int) -> bool:
    return all(layers[name].supports_kernel_block_size(tokens) for name in names)


def _group(specs: Mapping[str, CacheSpec]) -> dict[str, list[str]]:
    """Group name -> layer names: one group for each kind, and for each window."""
    members: dict[str, list[str]] = {}
    for name, spec in specs.items():
        members.setdefault(_group_name(spec), []).append(name)
    return members


def _group_name(spec: CacheSpec) -> str:
    if spec.window is None:
        return spec.kind
    return f"{'chunk' if spec.window.chunked else 'window'}-{spec.window.size}"


def _need(specs: Mapping[str, CacheSpec], names: Sequence[str], page_size: int) -> Need:
    tokens = specs[names[0]].tokens
    layer_bytes = [specs[name].block_bytes for name in names]
    if tokens is None:
        return splittable(layer_bytes)
    blocks = page_size // tokens
    return whole(blocks * sum(layer_bytes), blocks)


def _group_plan(
    name: str,
    names: Sequence[str],
    specs: Mapping[str, CacheSpec],
    page_size: int,
    cut: Cut,
    index: int,
) -> GroupPlan:
    spec, split, count = specs[names[0]], cut.splits[index], cut.counts[index]
    is_state = spec.tokens is None
    return GroupPlan(
        name=name,
        kind=spec.kind,
        layers=tuple(names),
        page_size=None if is_state else page_size,
        kernel_block_size=spec.tokens,
        page_bytes=split.page_bytes,
        page_stride=cut.slab_bytes // count,
        pages_per_slab=count,
        window=spec.window,
        parts=split.parts,
        sequence_bytes=sum(specs[name].block_bytes for name in names) if is_state else 0,
    )


def _layer_plans(
    group: GroupPlan, split: Split, layers: Mapping[str, Cached], specs: Mapping[str, CacheSpec]
) -> dict[str, LayerPlan]:
    order = {name: index for index, name in enumerate(layers)}
    plans: dict[str, LayerPlan] = {}
    part, offset = -1, 0
    for number, name in enumerate(group.layers):
        if number in split.starts:
            part, offset = part + 1, 0
        plans[name] = _layer_plan(
            order[name], name, layers[name].mixer, specs[name], group, part, offset
        )
        offset += specs[name].block_bytes
    return plans


def _layer_plan(
    index: int, name: str, mixer: str, spec: CacheSpec, group: GroupPlan, part: int, offset: int
) -> LayerPlan:
    state_bytes = sum(state.num_bytes for state in spec.states)
    per_token = state_bytes // spec.tokens if spec.tokens else 0
    return LayerPlan(
        index=index,
        name=name,
        kind=spec.kind,
        mixer=mixer,
        group=group.name,
        page_size=group.page_size,
        kernel_block_size=group.kernel_block_size,
        bytes_per_page=group.blocks_per_page * spec.block_bytes,
        bytes_per_token=per_token,
        bytes_per_sequence=_sequence_bytes(spec, state_bytes, per_token),
        states=tuple(
            (state.name, state.shape, str(state.dtype).removeprefix("torch."))
            for state in spec.states
        ),
        offset=offset,
        block_bytes=spec.block_bytes,
        window=spec.window,
        part=part,
        tokens_per_entry=max((state.tokens_per_entry for state in spec.states), default=1),
    )


def _sequence_bytes(spec: CacheSpec, state_bytes: int, per_token: int) -> int:
    """What doesn't grow with a sequence's length, once it has some."""
    if spec.window is not None:
        return spec.window.size * per_token
    return state_bytes if spec.tokens is None else 0
