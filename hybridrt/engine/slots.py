"""Slots: the places of a model that the tensors of a checkpoint fill."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

Layout = Mapping[str, Tensor]
_Shapes = Mapping[str, tuple[int, ...] | None]  # None: not known


class HasShape(Protocol):
    """A tensor of a checkpoint, as far as it matters here."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...


@runtime_checkable
class PackedModule(Protocol):
    """A module that keeps several checkpoint tensors in one parameter."""

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        """Each way in which checkpoints store all of the module's own parameters.

        A layout maps a tensor's name, relative to the path of the module's
        parent, to the view of the parameter that the tensor fills.
        """
        ...


@dataclass(slots=True)
class Slot:
    """A place in the model that one checkpoint tensor fills.

    `names` are the checkpoint names that may fill it: one, or several where a
    parameter is shared. The place is `module`'s own `key`, or entry `key` of
    its layout number `layout`. One that `broadcasts` may be filled by one number; one that
    `holds_integers` by whole numbers only.
    """

    module: nn.Module
    key: str
    layout: int | None
    shape: tuple[int, ...]
    names: list[str] = field(default_factory=list)
    broadcasts: bool = False
    holds_integers: bool = False

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of that shape fills the place."""
        return shape == self.shape or (self.broadcasts and math.prod(shape) == 1)


def parameter_slots(
    model: nn.Module, present: Iterable[str] | Mapping[str, HasShape]
) -> list[Slot]:
    """Every place of `model` that a checkpoint fills, and the names that may fill it.

    `present` are the checkpoint's names, which decide between a packed module's layouts; and
    their tensors' shapes, if it is a mapping to tensors. A parameter with several names is one
    place.
    """
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    shapes = (
        {name: tuple(tensor.shape) for name, tensor in present.items()}
        if isinstance(present, Mapping)
        else dict.fromkeys(present)
    )
    slots: dict[object, Slot] = {}
    for module, module_paths in paths.items():
        if isinstance(module, PackedModule):
            parents = [path.rpartition(".")[0] for path in module_paths]
            _add_packed(slots, module, parents, shapes)
        else:
            _add_plain(slots, module, module_paths)
        _add_optional(slots, module, module_paths, shapes.keys())
    return list(slots.values())


def _add_plain(slots: dict[object, Slot], module: nn.Module, paths: Sequence[str]) -> None:
    for key, tensor in own_tensors(module):
        own = Slot(module, key, None, tuple(tensor.shape))
        own.holds_integers = not tensor.is_floating_point()
        slot = slots.setdefault(id(tensor), own)
        slot.names += [_join(path, key) for path in paths]


def _add_packed(
    slots: dict[object, Slot], module: PackedModule, parents: Sequence[str], present: _Shapes
) -> None:
    assert isinstance(module, nn.Module)
    layouts = module.checkpoint_layouts()
    shares = [_share_present(layout, parents, present) for layout in layouts]
    number = shares.index(max(shares))
    _check_covers(module, layouts[number])
    for key, view in layouts[number].items():
        names = [_join(parent, key) for parent in parents]
        slots[id(module), key] = Slot(module, key, number, tuple(view.shape), names)


def _add_optional(
    slots: dict[object, Slot], module: nn.Module, paths: Sequence[str], present: Set[str]
) -> None:
    """Buffers that keep what they have where a checkpoint doesn't fill them."""
    keys: tuple[str, ...] = getattr(module, "optional_tensors", ())
    for key in keys:
        names = [_join(path, key) for path in paths]
        if hasattr(module, key) and not present.isdisjoint(names):
            buffer: Tensor = getattr(module, key)
            is_float = buffer.is_floating_point()
            shape = tuple(buffer.shape)
            slots[module, key] = Slot(module, key, None, shape, names, is_float, not is_float)


def _share_present(layout: Layout, parents: Sequence[str], present: _Shapes) -> tuple[float, float]:
    """Which part of a layout's names the checkpoint has; and has in the layout's shapes."""
    named = fitting = 0
    for key, view in layout.items():
        names = [name for name in (_join(parent, key) for parent in parents) if name in present]
        named += bool(names)
        fitting += any(present[name] == tuple(view.shape) for name in names)
    return named / max(len(layout), 1), fitting / max(len(layout), 1)


def _check_covers(module: nn.Module, layout: Layout) -> None:
    covered = sum(view.numel() for view in layout.values())
    owned = sum(tensor.numel() for _, tensor in own_tensors(module))
    assert covered == owned, (
        f"{type(module).__name__}.checkpoint_layouts(): {sorted(layout)} fill {covered} elements "
        f"of {owned}"
    )


def own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a module, its children's left out, and the buffers that are saved."""
    yield from module.named_parameters(recurse=False)
    buffers = module.named_buffers(recurse=False)
    yield from (b for b in buffers if b[0] not in module._non_persistent_buffers_set)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def place_of(slot: Slot, layouts: dict[nn.Module, Sequence[Layout]]) -> Tensor:
    """The slot's tensor, once its model has memory. Keeps in `layouts` what it has made."""
    if slot.layout is None:
        return getattr(slot.module, slot.key)
    assert isinstance(slot.module, PackedModule)
    if slot.module not in layouts:
        layouts[slot.module] = slot.module.checkpoint_layouts()
    return layouts[slot.module][slot.layout][slot.key]
