"""Weights: from safetensors files onto a model that was built on the meta device.

Everything that can be wrong with names, shapes and dtypes is found from the
files' headers, before a byte of the model is allocated. Then each tensor is
mapped, copied to its place (converted on the way) and unmapped, so that peak
memory is the model and one tensor.
"""

import math
import mmap
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from hybridrt.engine.checkpoint import StoredTensor, stored_tensors
from hybridrt.progress import byte_progress

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""What weights may be stored as, by safetensors' name."""

_MOST_LISTED = 50  # names per kind in an error
_Layout = Mapping[str, Tensor]


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
    its layout number `layout`. One that `broadcasts` may be filled by one number.
    """

    module: nn.Module
    key: str
    layout: int | None
    shape: tuple[int, ...]
    names: list[str] = field(default_factory=list)
    broadcasts: bool = False

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of that shape fills the place."""
        return shape == self.shape or (self.broadcasts and math.prod(shape) == 1)


def load_weights(
    model: nn.Module, directory: Path, *, device: torch.device, progress: bool = False
) -> None:
    """Allocates `model` on `device` and fills it from the checkpoint in `directory`.

    Raises:
        ValueError: a file is truncated or corrupt; a tensor is missing, unexpected,
            of another shape or of a dtype that can't be loaded; or tied weights differ.
    """
    tensors = _renamed(model, stored_tensors(directory))
    slots = parameter_slots(model, tensors)
    _check(model, directory, slots, tensors)
    _materialise(model, device)
    _fill(slots, tensors, progress)
    model.requires_grad_(False)


def checkpoint_dtype(directory: Path) -> str | None:
    """The dtype in which most of a checkpoint's elements are stored, as torch names it."""
    elements: Counter[torch.dtype] = Counter()
    for tensor in stored_tensors(directory).values():
        if tensor.dtype in DTYPES:
            elements[DTYPES[tensor.dtype]] += math.prod(tensor.shape)
    return str(elements.most_common(1)[0][0]).removeprefix("torch.") if elements else None


def _renamed(model: nn.Module, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    renames = getattr(model, "checkpoint_renames", ())
    renamed: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        if name in renamed:
            raise ValueError(
                f"{tensor.file}: {tensor.name!r} and {renamed[name].name!r} both mean {name!r}"
            )
        renamed[name] = tensor
    return renamed


def parameter_slots(model: nn.Module, present: Iterable[str]) -> list[Slot]:
    """Every place of `model` that a checkpoint fills, and the names that may fill it.

    `present` are the checkpoint's names, which decide between a packed module's layouts.
    A parameter with several names is one place.
    """
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    present = set(present)
    slots: dict[object, Slot] = {}
    for module, module_paths in paths.items():
        if isinstance(module, PackedModule):
            parents = [path.rpartition(".")[0] for path in module_paths]
            _add_packed(slots, module, parents, present)
        else:
            _add_plain(slots, module, module_paths)
        _add_optional(slots, module, module_paths, present)
    return list(slots.values())


def _add_plain(slots: dict[object, Slot], module: nn.Module, paths: Sequence[str]) -> None:
    for key, tensor in _own_tensors(module):
        slot = slots.setdefault(id(tensor), Slot(module, key, None, tuple(tensor.shape)))
        slot.names += [_join(path, key) for path in paths]


def _add_packed(
    slots: dict[object, Slot], module: PackedModule, parents: Sequence[str], present: set[str]
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
    slots: dict[object, Slot], module: nn.Module, paths: Sequence[str], present: set[str]
) -> None:
    """Buffers that keep what they have where a checkpoint doesn't fill them."""
    keys: tuple[str, ...] = getattr(module, "optional_tensors", ())
    for key in keys:
        names = [_join(path, key) for path in paths]
        if hasattr(module, key) and not present.isdisjoint(names):
            shape = tuple(getattr(module, key).shape)
            slots[module, key] = Slot(module, key, None, shape, names, broadcasts=True)


def _share_present(layout: _Layout, parents: Sequence[str], present: set[str]) -> float:
    found = sum(any(_join(parent, key) in present for parent in parents) for key in layout)
    return found / max(len(layout), 1)


def _check_covers(module: nn.Module, layout: _Layout) -> None:
    covered = sum(view.numel() for view in layout.values())
    owned = sum(tensor.numel() for _, tensor in _own_tensors(module))
    assert covered == owned, (
        f"{type(module).__name__}.checkpoint_layouts(): {sorted(layout)} fill {covered} elements "
        f"of {owned}"
    )


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a module, its children's left out, and the buffers that are saved."""
    yield from module.named_parameters(recurse=False)
    buffers = module.named_buffers(recurse=False)
    yield from (b for b in buffers if b[0] not in module._non_persistent_buffers_set)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _check(
    model: nn.Module, directory: Path, slots: Sequence[Slot], tensors: Mapping[str, StoredTensor]
) -> None:
    """Refuses a checkpoint that does not fill the model exactly, with all that is wrong."""
    used = {name: slot for slot in slots for name in slot.names if name in tensors}
    problems = {
        "missing": [
            " or ".join(slot.names) for slot in slots if used.keys().isdisjoint(slot.names)
        ],
        "unexpected": [
            name if name == tensor.name else f"{tensor.name} (read as {name})"
            for name, tensor in tensors.items()
            if name not in used and not _ignored(model, name)
        ],
        "misshapen": [
            f"{name} is {list(tensors[name].shape)}, should be {list(slot.shape)}"
            for name, slot in used.items()
            if not slot.takes(tensors[name].shape)
        ],
        "of a dtype that can't be loaded": [
            f"{name} is {tensors[name].dtype}, should be one of {', '.join(DTYPES)}"
            for name in used
            if tensors[name].dtype not in DTYPES
        ],
    }
    lines = [_list_problem(kind, names) for kind, names in problems.items() if names]
    if lines:
        title = f"{directory}: the weights do not fit {type(model).__name__}:"
        raise ValueError("\n".join([title, *lines]))


def _ignored(model: nn.Module, name: str) -> bool:
    patterns: tuple[str, ...] = getattr(model, "ignored_tensors", ())
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _list_problem(kind: str, names: Sequence[str]) -> str:
    listed = [f"    {name}" for name in names[:_MOST_LISTED]]
    if len(names) > _MOST_LISTED:
        listed.append(f"    ... and {len(names) - _MOST_LISTED} more")
    return "\n".join([f"  {kind} ({len(names)}):", *listed])


def _materialise(model: nn.Module, device: torch.device) -> None:
    """Gives every tensor of `model` memory on `device`; a shared one stays one object."""
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for key in module._non_persistent_buffers_set:
            buffer = module._buffers[key]
            assert buffer is None or not buffer.is_meta, (
                f"{type(module).__name__}.{key}: nothing fills this buffer; make it after loading"
            )
        for own in cast("list[dict[str, Any]]", [module._parameters, module._buffers]):
            for key, tensor in own.items():
                if tensor is None:
                    continue
                if tensor not in made:
                    made[tensor] = _on_device(tensor, device)
                own[key] = made[tensor]


def _on_device(tensor: Tensor, device: torch.device) -> Tensor:
    allocate = torch.empty_like if tensor.is_meta else Tensor.to
    moved = allocate(tensor.detach(), device=device)
    return nn.Parameter(moved, False) if isinstance(tensor, nn.Parameter) else moved


@torch.no_grad()
def _fill(slots: Sequence[Slot], tensors: Mapping[str, StoredTensor], progress: bool) -> None:
    """Copies every tensor to its place, in the order of the files' bytes."""
    sources = [[tensors[name] for name in slot.names if name in tensors] for slot in slots]
    order = sorted(range(len(slots)), key=lambda n: (sources[n][0].file, sources[n][0].start))
    layouts: dict[nn.Module, Sequence[_Layout]] = {}
    total = sum(source[0].num_bytes for source in sources)
    with byte_progress(total, shown=progress) as advance:
        for n in order:
            _fill_one(_place(slots[n], layouts), sources[n])
            advance(sources[n][0].num_bytes)


def _fill_one(place: Tensor, sources: Sequence[StoredTensor]) -> None:
    tensor = _mapped(sources[0])
    place.copy_(tensor)
    for source in sources[1:]:
        if not _equal(tensor, _mapped(source)):
            raise ValueError(
                f"{source.file}: {sources[0].name!r} and {source.name!r} fill the same weight "
                "(tied), but their values differ; should be equal, or one of them left out"
            )


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.dtype == b.dtype and torch.equal(*(x.flatten().view(torch.uint8) for x in (a, b))):
        return True  # NaN is equal to itself here
    return torch.equal(a.to(torch.float32), b.to(torch.float32))


def _place(slot: Slot, layouts: dict[nn.Module, Sequence[_Layout]]) -> Tensor:
    if slot.layout is None:
        return getattr(slot.module, slot.key)
    assert isinstance(slot.module, PackedModule)
    if slot.module not in layouts:
        layouts[slot.module] = slot.module.checkpoint_layouts()
    return layouts[slot.module][slot.layout][slot.key]


def _mapped(tensor: StoredTensor) -> Tensor:
    """A tensor over the file's own pages, which are unmapped when it is dropped."""
    dtype = DTYPES[tensor.dtype]
    if tensor.num_bytes == 0:
        return torch.empty(tensor.shape, dtype=dtype)
    skip = tensor.start % mmap.ALLOCATIONGRANULARITY
    with tensor.file.open("rb") as stream:
        # A private writable map, as torch warns of read-only memory. Nothing is written to it.
        length, offset = tensor.num_bytes + skip, tensor.start - skip
        mapped = mmap.mmap(stream.fileno(), length, access=mmap.ACCESS_COPY, offset=offset)
    raw = torch.frombuffer(mapped, dtype=torch.uint8, count=tensor.num_bytes, offset=skip)
    if tensor.start % dtype.itemsize:
        raw = raw.clone()  # the format does not promise alignment
    return raw.view(dtype).view(tensor.shape)
