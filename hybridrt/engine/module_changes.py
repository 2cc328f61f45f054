"""What a model is made of, to notice that it is made of something else by now."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as nn_module

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""torch's own, such as dicts of hooks, which are changed in place."""


class ModuleParts:
    """The modules of a model and all that they hold by now: weights, buffers, other attributes.

    Numbers written into a tensor that is there don't count as a change.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = [*model.modules()]
        self._holders = [holder for module in modules for holder in _holders(module) if holder]
        self._sizes = [*map(len, self._holders)]
        # Where there are none by now, none are used.
        self._parts = [
            (holder, name, part)
            for holder in self._holders
            for name, part in holder.items()
            if name not in _OF_EVERY_MODULE
        ]
        # oneDNN's own tensors have no address to ask for.
        tensors = [part for _, _, part in self._parts if isinstance(part, Tensor)]
        self._tensors = [tensor for tensor in tensors if not tensor.is_mkldnn]
        self._addresses = self._where_tensors_are()
        self._hooks = [nn_module._global_forward_hooks, nn_module._global_forward_pre_hooks]
        for module in modules:
            self._hooks += [module._forward_hooks, module._forward_pre_hooks]
        self.is_compiled = any(module._compiled_call_impl is not None for module in modules)

    @property
    def have_hooks(self) -> bool:
        """Whether a call of a module calls something else, too."""
        return any(self._hooks)

    def are_the_same(self) -> bool:
        """Whether the modules hold what they held when this was made, where it was."""
        return (
            all([holder.get(name) is part for holder, name, part in self._parts])
            and [*map(len, self._holders)] == self._sizes
            and self._where_tensors_are() == self._addresses
        )

    def _where_tensors_are(self) -> list[int]:
        return [*map(Tensor.data_ptr, self._tensors)]


def _holders(module: nn.Module) -> Iterator[dict[str, Any]]:
    """The dicts of a module's parts."""
    yield vars(module)
    yield from (module._parameters, module._buffers, module._modules)
