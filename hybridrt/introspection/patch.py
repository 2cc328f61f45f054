"""Patching: other values in a layer's cache, exactly those, and back again.

Before a write the session's pages are set aside and it goes on with a fork of them, so that
nobody else has what is written into, and undoing it is to take back what was set aside.
"""

import reprlib
from collections.abc import Mapping, Sequence
from types import TracebackType

import torch
from jaxtyping import Int64
from torch import Tensor

from hybridrt.cache.plan import LayerPlan
from hybridrt.engine.backup import Backup
from hybridrt.engine.read_cache import POSITIONS, Field, LayerCache, TokenCache
from hybridrt.introspection.access import Access
from hybridrt.introspection.history import current
from hybridrt.values import plain_int

Rows = int | slice | range
"""A position of a token, or several."""


class Undo:
    """Sets a session back to what it was before a write, bit for bit, whatever came after.

    Its tokens, pages, states and logits are those of then. A `with` statement undoes the write at
    its end, and breaks off what is generating then. The pages from before the write that were
    copied, states among them, are held until it is undone or kept, or nobody has this object any
    more.
    """

    def __init__(self, writes: Sequence[tuple[Access, Backup]]) -> None:
        self._writes = tuple(writes)

    def __repr__(self) -> str:
        if not self._writes:
            return "<Undo that is part of another>"
        names = dict.fromkeys(access.held.name for access, _ in self._writes)
        state = "possible" if self.possible else "not possible any more"
        return f"<Undo of a write to {' and '.join(names)}: {state}>"

    @property
    def possible(self) -> bool:
        """Whether what was there before is still held."""
        return all(
            not access.closed and backup in access.held.backups for access, backup in self._writes
        )

    def undo(self) -> None:
        """Sets the session back. Later writes to it are undone with this one.

        Raises:
            ValueError: it was undone or kept already, or an earlier write was undone, or the
                session is closed or generating, or all pages were lost after an error.
        """
        self._check()
        for access, backup in reversed(self._writes):
            with access.engine.repairing():
                access.engine.held.put_back(access.held, backup)

    def keep(self) -> None:
        """Lets the write stay for good, and gives back the pages from before it.

        Raises:
            ValueError: as `undo`.
        """
        self._check()
        for access, backup in self._writes:
            with access.engine.repairing():
                access.engine.held.let_go(access.held, backup)

    def joined(self, other: "Undo") -> "Undo":
        """One that undoes both, the other first. This one and the other are used up."""
        both = Undo((*self._writes, *other._writes))
        self._writes = other._writes = ()
        return both

    def __enter__(self) -> "Undo":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.possible:
            return
        for access, _ in self._writes:
            if access.held.run is not None:  # an error came between two tokens of a stream
                access.engine.abort(access.held.run.request.request_id)
        self.undo()

    def __del__(self) -> None:
        # Nothing of the engine may change here: this may run in the middle of anything.
        for _, backup in self._writes:
            backup.abandoned = True

    def _check(self) -> None:
        for access, backup in self._writes:
            if backup not in access.still().backups:
                raise ValueError(
                    f"{access.held.name}: this write can't be undone or kept any more: that was "
                    f"done, or an earlier write was undone, or all pages were lost after an error"
                )


def write(
    access: Access,
    plan: LayerPlan,
    values: Mapping[str, Tensor],
    tokens: Rows | None,
    position: int | None,
) -> Undo:
    """See `SessionLayer.write`."""
    cache = _writable(access, plan, position)
    rows = _chosen_rows(cache, plan, tokens)
    for name, tensor in values.items():
        _check(cache, plan, name, tensor, rows)
    return _apply(access, plan, values, rows)


def ablate(access: Access, plan: LayerPlan, tokens: Rows | None) -> Undo:
    """See `SessionLayer.ablate`."""
    cache = _writable(access, plan, None)
    rows = _chosen_rows(cache, plan, tokens)
    names = [*cache.fields] if rows is None else [n for n in cache.fields if n in _CONTENTS]
    fields = {name: cache.fields[name] for name in names}
    zeros = {
        name: torch.zeros(_shape(field, rows), dtype=field.dtype) for name, field in fields.items()
    }
    return _apply(access, plan, zeros, rows)


_CONTENTS = ("v", "c_kv", "kv", "entries", "inputs")
"""What of a token its layer adds up into an output, as opposed to what it finds it by."""


def _apply(
    access: Access, plan: LayerPlan, values: Mapping[str, Tensor], rows: range | None
) -> Undo:
    engine, held = access.engine, access.held
    group = [group.name for group in engine.plan.groups].index(plan.group)
    with engine.repairing():
        backup = engine.held.set_aside(held)
        try:
            places: Int64[Tensor, " rows"] | None = None
            cache = current(access, plan)
            if rows is not None:
                assert isinstance(cache, TokenCache)
                places = torch.tensor(rows, device=engine.pool.bytes.device)
                engine.pages.own(held.name, group, cache.pages_of(places))
                cache = current(access, plan)
            for name, tensor in values.items():
                cache.write(name, tensor.to(engine.pool.bytes.device), places)
        except BaseException:
            engine.held.put_back(held, backup)
            raise
    return Undo([(access, backup)])


def _writable(access: Access, plan: LayerPlan, position: int | None) -> LayerCache:
    held, position = access.compute(), plain_int(position)
    if not held.num_computed:
        raise ValueError(f"{held.name} has no tokens, so no cache to write to; append some first")
    if position is not None and position != held.num_computed:
        raise ValueError(
            f"{held.name}: position={position!r} should be {held.num_computed}, the number of its "
            f"tokens: what {plan.name} holds behind fewer is not in use any more"
        )
    return current(access, plan)


def _chosen_rows(cache: LayerCache, plan: LayerPlan, tokens: Rows | None) -> range | None:
    if not isinstance(cache, TokenCache):
        if tokens is not None:
            raise ValueError(f"{plan.name}: tokens={tokens!r} should be None: it holds a state")
        return None
    held, tokens = cache.rows, plain_int(tokens)
    if tokens is None:
        rows = held
    elif isinstance(tokens, slice):
        start = held.start if tokens.start is None else tokens.start
        rows = range(*slice(start, tokens.stop, tokens.step).indices(held.stop))
    elif isinstance(tokens, range):
        rows = tokens
    elif type(tokens) is int:
        rows = range(tokens, tokens + 1)
    else:
        raise ValueError(f"{plan.name}: tokens={tokens!r} should be a position, range or slice")
    if not rows or min(rows) < held.start or max(rows) >= held.stop:
        raise ValueError(
            f"{plan.name}: tokens={tokens!r} should be some of {held.start} to {held.stop - 1}, "
            f"which it holds"
        )
    return rows


def _check(
    cache: LayerCache, plan: LayerPlan, name: str, values: object, rows: range | None
) -> None:
    names = sorted(set(cache.fields) - {POSITIONS})
    if name not in names:
        raise ValueError(f"{plan.name}: {name!r} should be one of {names}")
    field = cache.fields[name]
    if not isinstance(values, Tensor):
        raise ValueError(f"{plan.name}: {name} should be a tensor, not {reprlib.repr(values)}")
    shape = _shape(field, rows)
    if values.shape != shape:
        raise ValueError(
            f"{plan.name}: {name} has the shape {list(values.shape)}; should be {list(shape)}, "
            f"which are {', '.join(field.axes)}"
        )
    fits = (
        values.is_floating_point()
        if field.dtype.is_floating_point
        else not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    )
    if not fits:
        raise ValueError(f"{plan.name}: {name} is of {values.dtype}; should be of {field.dtype}")


def _shape(field: Field, rows: range | None) -> torch.Size:
    return torch.Size(field.shape if rows is None else (len(rows), *field.shape))
