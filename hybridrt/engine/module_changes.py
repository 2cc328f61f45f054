"""What a model is made of, to notice that it is made of something else by now."""

from itertools import chain
from operator import is_

from torch import Tensor, nn
from torch.nn.modules import module as nn_module


class ModuleParts:
    """The modules of a model and all that they hold by now: weights, buffers, other attributes.

    Numbers written into a tensor that is there don't count as a change.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = [*model.modules()]
        self._holders = [
            held.values()
            for module in modules
            for held in (module.__dict__, module._parameters, module._buffers, module._modules)
        ]
        self._parts = [*chain.from_iterable(self._holders)]
        # oneDNN's own tensors have no address to ask for.
        self._tensors = [
            part for part in self._parts if isinstance(part, Tensor) and not part.is_mkldnn
        ]
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
        parts = [*chain.from_iterable(self._holders)]
        return (
            len(parts) == len(self._parts)
            and all(map(is_, parts, self._parts))
            and self._where_tensors_are() == self._addresses
        )

    def _where_tensors_are(self) -> list[int]:
        return [*map(Tensor.data_ptr, self._tensors)]
