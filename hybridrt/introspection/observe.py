"""Sees what layers give to kernels while a step runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

from torch import nn

from hybridrt.kernels.op import observed_calls

See = Callable[[int, int, str, Mapping[str, Any]], None]
"""Is shown the layer's index, which of its calls this is, the kernel's name and its arguments."""


@contextmanager
def observed(layers: Mapping[int, nn.Module], see: See) -> Iterator[None]:
    """Shows every kernel call that these layers make inside, before the kernel computes.

    A call belongs to the innermost of the layers that are running. Calls of other layers, and of
    other threads, are not shown. Whatever happens inside, no hook is left on a module.
    """
    running: list[tuple[int, Iterator[int]]] = []
    thread = get_ident()

    def enter(index: int) -> Callable[..., None]:
        def hook(*_: object) -> None:
            if get_ident() == thread:
                running.append((index, iter(range(10**9))))

        return hook

    def leave(*_: object) -> None:
        if get_ident() == thread:
            running.pop()

    def note(name: str, arguments: Mapping[str, Any]) -> None:
        if running and get_ident() == thread:
            index, numbers = running[-1]
            see(index, next(numbers), name, arguments)

    with ExitStack() as stack:
        for index, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(enter(index)).remove)
            stack.callback(layer.register_forward_hook(leave, always_call=True).remove)
        stack.enter_context(observed_calls(note))
        yield
