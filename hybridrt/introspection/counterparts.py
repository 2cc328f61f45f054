"""Which parameters and modules of transformers' model are which of ours.

Parameters by their names: those of transformers' model are read as if they were a checkpoint's,
and the loader's own rules say which place of ours each one fills. Modules by their parameters:
those that hold the same ones do the same work, whatever they are called.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hybridrt.engine.fit import name_in
from hybridrt.engine.slots import PackedModule, Slot, own_tensors, parameter_slots
from hybridrt.introspection.readable import as_loaded, layouts_of
from hybridrt.layers.linear import FusedLinear
from hybridrt.models.causal_lm import CausalLM


@dataclass(frozen=True, slots=True)
class Weight:
    """A place of ours, and the tensor of transformers' model that belongs there.

    `name` is that tensor's in transformers' model.
    """

    slot: Slot
    name: str
    tensor: Tensor


class Counterparts:
    """Our model beside transformers'.

    Attributes:
        weights: the places that both have, each known by its index here.
        ours, theirs: the places that every module holds, those of its children included.
        without: the names of our places and of their tensors that the other side lacks.
        our_layers, their_layers: the layers of both, one beside the other.
    """

    def __init__(self, model: CausalLM, other: nn.Module) -> None:
        with as_loaded(model):
            self._pair(model, other)
        self.their_layers = self._find_layers()

    def _pair(self, model: CausalLM, other: nn.Module) -> None:
        tensors = saved_tensors(other)
        names = {name_in(model, name): name for name in tensors}
        slots = parameter_slots(model, {ours: tensors[name] for ours, name in names.items()})
        self.model, self.other = model, other
        self.weights: list[Weight] = []
        for slot in slots:
            name = next((names[ours] for ours in slot.names if ours in names), None)
            if name is not None:
                self.weights.append(Weight(slot, name, tensors[name]))
        ours = {weight.slot.names[0] for weight in self.weights}
        theirs = {id(weight.tensor) for weight in self.weights}
        self.without = (
            [slot.names[0] for slot in slots if slot.names[0] not in ours],
            [name for name, tensor in tensors.items() if id(tensor) not in theirs],
        )
        self.ours = _held(model, self._our_own())
        self.theirs = _held(other, self._their_own())
        self.our_layers = list(model.model.layers)

    def _our_own(self) -> dict[nn.Module, set[int]]:
        """The places in a module's own tensors."""
        of_tensor: dict[int, int] = {}
        own: dict[nn.Module, set[int]] = {}
        for index, weight in enumerate(self.weights):
            slot = weight.slot
            if slot.layout is None:
                of_tensor[id(getattr(slot.module, slot.key))] = index
            else:
                own.setdefault(slot.module, set()).add(index)
        for module in self.model.modules():
            if not isinstance(module, PackedModule):
                indices = (of_tensor.get(id(tensor)) for _, tensor in own_tensors(module))
                own.setdefault(module, set()).update(i for i in indices if i is not None)
        return own

    def _their_own(self) -> dict[nn.Module, set[int]]:
        of_tensor = {id(weight.tensor): index for index, weight in enumerate(self.weights)}
        return {
            module: {of_tensor[id(t)] for _, t in own_tensors(module) if id(t) in of_tensor}
            for module in self.other.modules()
        }

    def _find_layers(self) -> list[nn.Module]:
        """The list of transformers' model whose entries hold what our layers do."""
        best: list[nn.Module] = []
        most = 0
        for module in self.other.modules():
            if isinstance(module, nn.ModuleList) and len(module) == len(self.our_layers):
                pairs = zip(self.our_layers, module, strict=True)
                alike = sum(bool(self.ours[a] & self.theirs[b]) for a, b in pairs)
                if alike > most:
                    best, most = list(module), alike
        if not best:
            raise ValueError(
                f"{type(self.other).__name__} has no list of {len(self.our_layers)} layers with "
                f"the weights of ours ({type(self.model).__module__}); should be the model of "
                f"the same checkpoint, with the layer for the logits (AutoModelForCausalLM)"
            )
        return best


def saved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by all their names; a shared one is one object."""
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for key, tensor in own_tensors(module):
            found[f"{path}.{key}" if path else key] = tensor
    return found


def _held(model: nn.Module, own: Mapping[nn.Module, Set[int]]) -> dict[nn.Module, frozenset[int]]:
    return {
        module: frozenset(i for part in module.modules() for i in own.get(part, ()))
        for module in model.modules()
    }


def pieces(module: nn.Module, weights: Sequence[Weight], held: Set[int]) -> dict[int, Tensor]:
    """Of a linear layer that is several of a checkpoint's: the outputs that each place makes."""
    found: dict[int, Tensor] = {}
    whole = getattr(module, "weight", None)
    if not isinstance(module, PackedModule) or not isinstance(whole, Tensor) or whole.dim() != 2:
        return found
    for index in held:
        slot = weights[index].slot
        if slot.layout is None or not slot.key.endswith(".weight") or len(slot.shape) != 2:
            continue
        layout = {k: view for k, view in layouts_of(module)[slot.layout].items() if view.dim() == 2}
        before = list(layout)[: list(layout).index(slot.key)]
        start = sum(layout[key].shape[0] for key in before)
        rows = torch.arange(start, start + slot.shape[0])
        found[index] = module.places_of(rows) if isinstance(module, FusedLinear) else rows
    return found
