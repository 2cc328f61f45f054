"""Whether a module's call is its class's `forward`, and nothing else."""

from torch import nn
from torch.nn.modules import module as nn_module


def is_watched(module: nn.Module) -> bool:
    """Whether a call of the module does more, or anything else, than its class's `forward`."""
    return bool(
        "forward" in vars(module)
        or module._compiled_call_impl is not None
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or nn_module._has_any_global_hook()
    )
