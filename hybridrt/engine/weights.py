"""Weights: from the files of a checkpoint onto a model that was built on the meta device.

Everything that can be wrong with names, shapes and dtypes is found from the
files' headers, before a byte of the model is allocated. Then each tensor is
mapped, copied to its place (converted or decoded on the way) and unmapped, so that
peak memory is the model and one tensor.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from hybridrt.engine.checkpoint import StoredTensor
from hybridrt.engine.fit import Fit, fit
from hybridrt.engine.formats import checkpoint_tensors
from hybridrt.engine.quantised import Quantisation
from hybridrt.engine.slots import Layout, PackedModule, Slot, parameter_slots, place_of
from hybridrt.engine.sources import DTYPES, read
from hybridrt.progress import byte_progress

__all__ = ["PackedModule", "Slot", "checkpoint_dtype", "load_weights", "parameter_slots"]


def load_weights(
    model: nn.Module,
    directory: Path,
    *,
    device: torch.device,
    progress: bool = False,
    quantisation: Quantisation | None = None,
) -> None:
    """Allocates `model` on `device` and fills it from the checkpoint in `directory`.

    Raises:
        ValueError: a file is truncated or corrupt; a tensor is missing, unexpected,
            of another shape or of a dtype that can't be loaded; or tied weights differ.
    """
    found = fit_checkpoint(model, directory, quantisation)
    found.check(directory)
    _materialise(model, device)
    _fill(found, progress)
    model.requires_grad_(False)


def fit_checkpoint(model: nn.Module, directory: Path, quantisation: Quantisation | None) -> Fit:
    """How the checkpoint in `directory` fills `model`, from the headers of its files alone.

    Raises:
        ValueError: a file is truncated or corrupt, or two tensors mean the same one.
    """
    stored = checkpoint_tensors(directory)
    return fit(model, stored if quantisation is None else quantisation.decoded(stored))


def checkpoint_dtype(directory: Path) -> str | None:
    """The dtype in which most of a checkpoint's elements are stored, as torch names it."""
    elements: Counter[torch.dtype] = Counter()
    for tensor in checkpoint_tensors(directory).values():
        if tensor.dtype in DTYPES:
            elements[DTYPES[tensor.dtype]] += math.prod(tensor.shape)
    return str(elements.most_common(1)[0][0]).removeprefix("torch.") if elements else None


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
    if tensor.is_meta:
        # `empty_like` of a meta tensor would import sympy first, a third of a second.
        moved = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
        )
    else:
        moved = tensor.detach().to(device=device)
    return nn.Parameter(moved, False) if isinstance(tensor, nn.Parameter) else moved


@torch.no_grad()
def _fill(found: Fit, progress: bool) -> None:
    """Copies every tensor to its place, in the order of the files' bytes."""
    slots, tensors = found.slots, found.tensors
    sources = [[tensors[name] for name in slot.names if name in tensors] for slot in slots]
    order = sorted(range(len(slots)), key=lambda n: (sources[n][0].file, sources[n][0].start))
    layouts: dict[nn.Module, Sequence[Layout]] = {}
    total = sum(source[0].num_bytes for source in sources)
    with byte_progress(total, shown=progress) as advance:
        for n in order:
            _fill_one(place_of(slots[n], layouts), sources[n])
            advance(sources[n][0].num_bytes)


def _fill_one(place: Tensor, sources: Sequence[StoredTensor]) -> None:
    tensor = read(sources[0], place.dtype)
    place.copy_(tensor)
    for source in sources[1:]:
        if not _equal(tensor, read(source, place.dtype)):
            raise ValueError(
                f"{source.file}: {sources[0].name!r} and {source.name!r} fill the same weight "
                "(tied), but their values differ; should be equal, or one of them left out"
            )


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.dtype == b.dtype and torch.equal(*(x.flatten().view(torch.uint8) for x in (a, b))):
        return True  # NaN is equal to itself here
    return torch.equal(a.to(torch.float32), b.to(torch.float32))
