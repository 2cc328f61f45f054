"""What a layer held of a session's first tokens: from its cache, a checkpoint, or once more."""

from typing import Literal

from torch import Tensor

from hybridrt.cache.plan import LayerPlan
from hybridrt.engine.read_cache import LayerCache, StateCache, TokenCache, open_cache
from hybridrt.engine.sequence import tree_name
from hybridrt.introspection.access import Access
from hybridrt.values import plain_int

Source = Literal["cache", "checkpoint", "recomputed"]


class Reading(dict[str, Tensor]):
    """Copies of what a layer holds of the first `position` tokens, by name.

    Attributes:
        position: how many tokens, from the session's first on.
        source: "cache": what the session has now; "checkpoint": a copy of the states that the
            prefix cache has kept; "recomputed": the tokens were computed once more.
        axes: names of the axes of each tensor.
    """

    def __init__(self, cache: LayerCache, position: int, source: Source) -> None:
        super().__init__(cache.read_all())
        self.position = position
        self.source: Source = source
        self.axes = {name: field.axes for name, field in cache.fields.items()}

    def __missing__(self, name: object) -> Tensor:
        raise KeyError(f"{name!r} should be one of {[*self]}")


def read_at(access: Access, plan: LayerPlan, position: int | None) -> Reading:
    """What a layer holds of a session's first `position` tokens; None: of all, computed first.

    Raises:
        ValueError: there are not so many tokens, or what it was can't be computed again.
        OutOfPages: there is no room to compute it once more.
    """
    held, position = access.compute(), plain_int(position)
    now = held.num_computed
    if position is None or position == now:
        return Reading(current(access, plan), now, "cache")
    if type(position) is not int or not 0 <= position <= now:
        raise ValueError(f"{held.name}: position={position!r} should be from 0 to {now}")
    earlier = _in_cache(access, plan, position)
    if earlier is not None:
        return Reading(earlier, position, "cache")
    if held.was_written_to:
        raise ValueError(
            f"{held.name} was written to: what {plan.name} held behind {position} tokens is not "
            f"in its cache, and computing its tokens again would give something else; undo first"
        )
    copied = _checkpoint(access, plan, position)
    if copied is not None:
        return Reading(copied, position, "checkpoint")
    return _recompute(access, plan, position)


def current(access: Access, plan: LayerPlan) -> LayerCache:
    """What a layer holds of a session now."""
    engine, held = access.engine, access.held
    table = engine.held.table(held, plan.group)
    layer = engine.model.cached_layers()[plan.name]
    return open_cache(layer, plan, engine.pool, table, held.num_computed)


def checkpoint_positions(access: Access, plan: LayerPlan) -> tuple[int, ...]:
    """Numbers of tokens behind which the prefix cache has a copy of a layer's states."""
    prefix, held = access.engine.pages.prefix, access.open()
    if prefix is None or plan.kind != "state":
        return ()
    found = prefix.checkpoints(held.token_ids, _tree(access))
    return tuple(sorted(checkpoint.position for checkpoint in found))


def _in_cache(access: Access, plan: LayerPlan, position: int) -> LayerCache | None:
    """The first tokens out of what the session has of more; None: they are not all there."""
    engine = access.engine
    layer, group = engine.model.cached_layers()[plan.name], engine.plan.group(plan.group)
    if not position:
        return open_cache(layer, plan, engine.pool, None, 0)
    if plan.kind == "state":
        return None
    table = engine.held.table(access.held, plan.group)
    released = 0 if table is None else table.num_released * (group.page_size or 1)
    if released > group.first_kept(position):
        return None
    return TokenCache(layer, plan, engine.pool, table, position)


def _checkpoint(access: Access, plan: LayerPlan, position: int) -> LayerCache | None:
    engine = access.engine
    if engine.pages.prefix is None or plan.kind != "state":
        return None
    layer = engine.model.cached_layers()[plan.name]
    group = [group.name for group in engine.plan.groups].index(plan.group)
    for checkpoint in engine.pages.prefix.checkpoints(access.held.token_ids, _tree(access)):
        if checkpoint.position == position:
            page = checkpoint.pages[group][plan.part]
            return StateCache(layer, plan, engine.pool, page)
    return None


def _recompute(access: Access, plan: LayerPlan, position: int) -> Reading:
    """From another session of the first tokens, which begins where the prefix cache lets it."""
    engine, held = access.engine, access.held
    switch = engine.model.rope_switch_length
    if switch is not None and position <= switch < len(held.token_ids):
        raise ValueError(
            f"{held.name}: position={position}: with so few tokens other rotary frequencies hold "
            f"than with its {len(held.token_ids)}; beyond {switch} it can be computed again"
        )
    other = Access(engine, engine.held.open(held.cache_salt), access.run)
    try:
        engine.held.append(other.held, held.token_ids[:position])
        other.compute()
        return Reading(current(other, plan), position, "recomputed")
    finally:
        other.close()


def _tree(access: Access) -> str | None:
    held = access.held
    switch = access.engine.model.rope_switch_length
    return tree_name(held.cache_salt, len(held.token_ids), switch)
