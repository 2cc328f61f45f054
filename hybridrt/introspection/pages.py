"""The pages that one layer has of a session."""

from dataclasses import dataclass
from hashlib import sha256

from hybridrt.cache.page_table import PageTable
from hybridrt.cache.plan import LayerPlan
from hybridrt.cache.prefix_tree import token_bytes
from hybridrt.engine.sequence import tree_name
from hybridrt.introspection.access import Access


@dataclass(frozen=True, slots=True)
class PageInfo:
    """One page of a layer's group, as a session holds it.

    Attributes:
        number: its place in token order, released ones counted; of a state, the part.
        physical_id: its id in its group's view of the pool.
        kernel_ids: ids of its kernel blocks.
        slab: the slab that it lies in.
        tokens: positions of the tokens that it holds; of a state, those that are in it.
        holders: how many sequences hold it, this one included.
        kept: whether the prefix cache keeps it when nobody holds it any more.
        key: a hash of all tokens up to its end and of the `cache_salt`, in hex: equal prefixes
            have equal keys. None if prompts can't find it: it isn't full, or not kept, or a state.
    """

    number: int
    physical_id: int
    kernel_ids: tuple[int, ...]
    slab: int
    tokens: range
    holders: int
    kept: bool
    key: str | None

    @property
    def shared(self) -> bool:
        """Whether other sequences hold it too."""
        return self.holders > 1

    @property
    def own(self) -> bool:
        """Whether this session alone holds it."""
        return self.holders == 1


def page_infos(access: Access, plan: LayerPlan) -> tuple[PageInfo, ...]:
    """The pages that a layer has of a session now, in token order."""
    held, engine = access.open(), access.engine
    table = engine.held.table(held, plan.group)
    if table is None:
        return ()
    num_tokens = engine.pages.num_committed(held.name)
    if plan.page_size is None:
        return (_info(access, plan, table, plan.part, range(num_tokens), None),)
    keys = _keys(access, plan.page_size, num_tokens)
    infos: list[PageInfo] = []
    for place in range(len(table)):
        number = place + table.num_released
        start = number * plan.page_size
        tokens = range(min(start, num_tokens), min(start + plan.page_size, num_tokens))
        key = keys[number] if number < len(keys) else None
        infos.append(_info(access, plan, table, place, tokens, key))
    return tuple(infos)


def _info(
    access: Access, plan: LayerPlan, table: PageTable, place: int, tokens: range, key: str | None
) -> PageInfo:
    pool = access.engine.pool
    names = [group.name for group in pool.plan.groups]
    index = names.index(plan.group)
    group, page = pool.plan.groups[index], table.physical_ids[place]
    blocks = group.blocks_per_page
    kept = pool.allocator.is_kept(index, page)
    return PageInfo(
        number=place + table.num_released,
        physical_id=int(page),
        kernel_ids=tuple(table.kernel_ids.array[place * blocks : (place + 1) * blocks].tolist()),
        slab=page // group.pages_per_slab,
        tokens=tokens,
        holders=pool.allocator.references(index, page),
        kept=kept,
        key=key if kept else None,
    )


def _keys(access: Access, page_size: int, num_tokens: int) -> list[str]:
    """The chained hash at the end of each full page of the first tokens."""
    held, switch = access.held, access.engine.model.rope_switch_length
    token_ids = held.token_ids if held.run is None else held.run.token_ids
    salt = tree_name(held.cache_salt, len(token_ids), switch)
    chained, keys = sha256(repr(salt).encode()).digest(), []
    for end in range(page_size, num_tokens + 1, page_size):
        page = token_bytes(token_ids[end - page_size : end])
        chained = sha256(chained + page).digest()
        keys.append(chained.hex()[:32])
    return keys
