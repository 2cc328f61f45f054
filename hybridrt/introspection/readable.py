"""Weights as plain tensors, whatever layout the device has them in."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from hybridrt.engine.slots import Layout, PackedModule, Slot
from hybridrt.kernels.blocked_matrices import BlockedMatrices
from hybridrt.kernels.quantised_linear import QuantisedMatrices, QuantisedWeight
from hybridrt.layers.linear import Linear


@contextmanager
def as_loaded(model: nn.Module) -> Iterator[None]:
    """Meanwhile the model has the parameters that a checkpoint fills, packed ones without memory.

    They say where tensors of a checkpoint go; no forward can run.
    """
    with ExitStack() as undo:
        for module in [*model.modules()]:
            undo.callback(module.__dict__.update, {**vars(module)})
            packed = {key: _shape(part) for key, part in _packed(module).items()}
            if not packed:
                continue
            plain = {
                key: nn.Parameter(torch.empty(shape, device="meta"), False)
                for key, shape in packed.items()
            }
            module._parameters = {**module._parameters, **plain}
            module._modules = {k: m for k, m in module._modules.items() if k not in packed}
        yield


def _packed(module: nn.Module) -> dict[str, Tensor | nn.Module]:
    """The module's own weights that are in a layout of the device, by name."""
    weights = {key: p for key, p in module.named_parameters(recurse=False) if p.is_mkldnn}
    stacks = (nn.ParameterList, QuantisedMatrices, BlockedMatrices)
    return {**weights, **{k: m for k, m in module.named_children() if isinstance(m, stacks)}}


def _shape(part: Tensor | nn.Module) -> tuple[int, ...]:
    if isinstance(part, QuantisedWeight):
        return part.outputs, part.inputs
    if isinstance(part, BlockedMatrices):
        return len(part), part.outputs, part.inputs
    if isinstance(part, nn.ParameterList | QuantisedMatrices):
        return len(part), *_shape(part[0])
    assert isinstance(part, Tensor)
    return tuple(part.shape)


def layouts_of(module: nn.Module) -> Sequence[Layout]:
    """The module's `checkpoint_layouts`, of elements that can be looked at.

    What oneDNN has packed, or is blocked, is unpacked into a copy.
    """
    plain = _plain_parts(module)
    if plain:
        module = copy.copy(module)
        parameters = {key: nn.Parameter(part, False) for key, part in plain.items()}
        module._parameters = {**module._parameters, **parameters}
        module._modules = {k: m for k, m in module._modules.items() if k not in plain}
    assert isinstance(module, PackedModule)
    return module.checkpoint_layouts()


def _plain_parts(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the module's own weights that are packed or in blocks, by name."""
    plain = {k: p.to_dense() for k, p in module.named_parameters(recurse=False) if p.is_mkldnn}
    plain |= {k: m.plain() for k, m in module.named_children() if isinstance(m, BlockedMatrices)}
    if isinstance(module, Linear) and module.blocked is not None and "weight" not in plain:
        plain["weight"] = module.blocked.plain()
    return plain


def read_slot(slot: Slot) -> Tensor | None:
    """What fills a place of a loaded model; None: it was quantised, or stands in several parts."""
    if slot.layout is None:
        own: Tensor = getattr(slot.module, slot.key)
        tensor = _plain_parts(slot.module).get(slot.key, own)
        return None if tensor.is_meta else tensor
    if any(not isinstance(part, BlockedMatrices) for part in slot.module.children()):
        return None
    return layouts_of(slot.module)[slot.layout][slot.key]
