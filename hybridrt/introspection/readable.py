"""Weights as plain tensors, whatever layout the device has them in."""

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from hybridrt.engine.slots import Layout, PackedModule, Slot


def layouts_of(module: nn.Module) -> Sequence[Layout]:
    """The module's `checkpoint_layouts`, of elements that can be looked at.

    What oneDNN has packed is unpacked, into a copy.
    """
    packed = {key: p for key, p in module.named_parameters(recurse=False) if p.is_mkldnn}
    if packed:
        module = copy.copy(module)
        plain = {key: nn.Parameter(p.to_dense(), False) for key, p in packed.items()}
        module._parameters = {**module._parameters, **plain}
    assert isinstance(module, PackedModule)
    return module.checkpoint_layouts()


def read_slot(slot: Slot) -> Tensor | None:
    """What fills a place of a loaded model; None: it was quantised, or stands in several parts."""
    if slot.layout is None:
        tensor: Tensor = getattr(slot.module, slot.key)
        if tensor.is_meta:
            return None
        return tensor.to_dense() if tensor.is_mkldnn else tensor
    if any(p.is_meta for p in slot.module.parameters()) or any(slot.module.children()):
        return None
    return layouts_of(slot.module)[slot.layout][slot.key]
