"""Whether a module's call is its class's `forward`, and nothing else."""

from torch import nn
from torch.nn.modules import module as nn_module


def is_watched(module: nn.Module) -> bool:
    """Whether a call of the module does more, or anything else, than its class's `forward`."""
    own = vars(module)  # to ask that is quicker than to ask the module
    return bool(
        "forward" in own
        or module._compiled_call_impl is not None
        or own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or nn_module._has_any_global_hook()
    )
