"""What the modules of a model give while it runs, call by call."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

OTHER_FORWARD = "forward_selecting"
"""Of layers that hand on more than the stream: what their model calls in place of the module."""


@dataclass(slots=True)
class Call:
    """One place in a layer where a module runs, with what went in and came out.

    `layer` is the index of the layer around it, None outside of all. `path` is the module's in
    the model, the first of several. `order` counts ends of calls. Chunks of a prompt are joined
    along the tokens.
    """

    module: nn.Module
    path: str
    layer: int | None
    order: int
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def output(self, num_tokens: int) -> Tensor | None:
        """`[tokens, ...]`; None: what came out has not one row a token."""
        return _rows(self.outputs, num_tokens)

    def input(self, num_tokens: int) -> Tensor | None:
        """As `output`, of the first tensor that went in."""
        return _rows(self.inputs, num_tokens)


class Calls:
    """The calls of one run of a model; a run may be in chunks, each a forward of the whole."""

    def __init__(self) -> None:
        self.found: dict[tuple[int | None, nn.Module, int], Call] = {}
        self._layer: int | None = None
        self._times: dict[tuple[int | None, nn.Module], int] = {}

    def __iter__(self) -> Iterator[Call]:
        return iter(sorted(self.found.values(), key=lambda call: call.order))

    def _begin_forward(self) -> None:
        self._times.clear()

    def _enter_layer(self, index: int) -> None:
        self._layer = index

    def _leave_layer(self) -> None:
        self._layer = None

    def _record(self, module: nn.Module, path: str, given: Any, output: Any) -> None:
        place = (self._layer, module)
        time = self._times.get(place, 0)
        self._times[place] = time + 1
        call = self.found.get((*place, time))
        if call is None:
            call = Call(module, path, self._layer, len(self.found))
            self.found[(*place, time)] = call
        out, went_in = first_tensor(output), first_tensor(given)
        if out is not None:
            call.outputs.append(out.detach().clone())
        if went_in is not None:
            call.inputs.append(went_in.detach().clone())


@contextmanager
def recording(model: nn.Module, layers: Iterable[nn.Module]) -> Iterator[Calls]:
    """Records the calls of all modules of `model`, until it is left."""
    calls, layers = Calls(), list(layers)
    with ExitStack() as hooks:

        def hook(handle: Any) -> None:
            hooks.callback(handle.remove)

        hook(model.register_forward_pre_hook(lambda *_: calls._begin_forward()))
        for index, layer in enumerate(layers):
            hook(layer.register_forward_pre_hook(_entering(calls, index)))
            if hasattr(layer, OTHER_FORWARD):
                setattr(layer, OTHER_FORWARD, _wrapped(calls, index, layer))
                hooks.callback(delattr, layer, OTHER_FORWARD)
        for path, module in model.named_modules():
            hook(module.register_forward_hook(_recording(calls, path), with_kwargs=True))
        for layer in layers:  # behind what records the layer itself
            hook(layer.register_forward_hook(lambda *_: calls._leave_layer()))
        yield calls


def _entering(calls: Calls, index: int) -> Callable[..., None]:
    return lambda *_: calls._enter_layer(index)


def _recording(calls: Calls, path: str) -> Callable[..., None]:
    def record(module: nn.Module, given: Any, options: Mapping[str, Any], output: Any) -> None:
        calls._record(module, path, (*given, *options.values()), output)

    return record


def _wrapped(calls: Calls, index: int, layer: Any) -> Callable[..., Any]:
    """The other forward of a layer, which no hook sees."""
    forward = getattr(layer, OTHER_FORWARD)

    def run(*given: Any, **options: Any) -> Any:
        calls._enter_layer(index)
        output = forward(*given, **options)
        calls._record(layer, "", (*given, *options.values()), output)
        calls._leave_layer()
        return output

    return run


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor of numbers in what a module takes or gives."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if not isinstance(value, tuple | list):
        return None
    return next((x for x in map(first_tensor, value) if x is not None), None)


def _rows(chunks: list[Tensor], num_tokens: int) -> Tensor | None:
    """The chunks as one tensor, `[tokens, ...]`; a batch of one sequence loses its axis."""
    if not chunks:
        return None
    if any(chunk.dim() == 0 or chunk.shape[1:] != chunks[0].shape[1:] for chunk in chunks):
        return None
    rows = torch.cat(chunks)
    if rows.shape[0] == 1 != num_tokens:  # a batch of one sequence
        rows = rows[0]
    return rows if rows.dim() and rows.shape[0] == num_tokens else None
