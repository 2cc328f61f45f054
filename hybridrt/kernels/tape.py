"""Tape: the calls of a step on a CPU, which can be made again without the Python code around them.

What a CUDA graph is on a GPU: a step of fixed shapes, on tensors that don't move, comes down to a
list of compiled functions and their arguments, among them the addresses of results. Whoever makes
the calls again gets new results of what stands in the step's inputs by then.

While a tape is recorded everything is computed as ever. `Kernel`s (`hybridrt.kernels.cpu.jit`) are
seen as they are called, torch's operations as they are dispatched. What Python reads of a tensor is
not seen, so whatever lets it do so is a flaw, and a tape with one is of no use.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from hybridrt.kernels.backend import has_numba
from hybridrt.kernels.tape_memory import TapeMemory


class Call(NamedTuple):
    """A function and its arguments; and what numba has compiled, if it is a kernel."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    compiled: Any = None

    def __call__(self) -> None:
        """Makes the call.

        Raises:
            IndexError: a kernel, which returned False, has no place for a number that it was given.
        """
        if self.function(*self.args) is False:
            raise IndexError(f"{self.function} refuses its arguments")


_READS = frozenset(
    (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__, Tensor.__reduce_ex__)
)
"""How Python gets at a tensor's numbers without an operation that torch dispatches."""

aten = torch.ops.aten

COPIES = (aten._to_copy.default, aten.clone.default)

_OF_MASKS = (torch.bool, torch.uint8)

_OF_OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd
"""Under which torch keeps how operations are made of others."""


class Tape:
    """Calls in order.

    `for_kernels` are tensors that torch's operations may not read, but kernels may. What is
    computed stands in `memory`, which tapes may share: each overwrites what another computed.

    Attributes:
        flaw: why they don't make up the step; None: they do.
    """

    def __init__(
        self, for_kernels: Iterable[Tensor] = (), memory: TapeMemory | None = None
    ) -> None:
        self.flaw: str | None = None
        self._for_kernels = {_memory(tensor) for tensor in for_kernels}
        self._calls: list[Call] = []
        self._runs: Sequence[Callable[[], None]] | None = None  # what makes them; None: not yet
        self._held: list[Tensor] = []  # whose addresses are among the arguments
        self._memory = memory or TapeMemory()
        self._lent: set[int] = set()  # rooms, by address: what stands there is written every time

    def __len__(self) -> int:
        return len(self._calls)

    def replay(self) -> None:
        """Makes all calls again.

        Raises:
            IndexError: see `Call`.
        """
        if self._runs is None:
            self._runs = [*_runs(self._calls)]
        for run in self._runs:
            run()

    def add(
        self, function: Callable[..., Any], args: tuple[Any, ...], compiled: Any = None
    ) -> None:
        """Notes a call, which holds its arguments; see `Call`."""
        self._calls.append(Call(function, args, compiled))
        self._runs = None

    def hold(self, *tensors: Tensor) -> None:
        """Keeps the memory of tensors from being freed, or lent anew, if no call here writes it."""
        self._held += (tensor for tensor in tensors if _memory(tensor) not in self._lent)

    def lend(self, result: Tensor) -> Tensor:
        """A tensor like the result of an operation, of which the tape has the memory."""
        is_plain = result.device.type == "cpu" and result.layout is torch.strided
        if is_plain and result.is_contiguous() and result.nbytes > 0:
            lent = self._memory.lend(result)
            self._lent.add(_memory(lent))
            return lent
        self.hold(result)
        return result

    def add_operation(
        self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> Any:
        """Notes one of torch's operations, and returns what it will write every time."""
        traits = _traits(op)
        results = _tensors([result])
        read = {_memory(tensor) for tensor in _tensors((*args, *kwargs.values()))}
        is_view = not traits.writes and all(_memory(tensor) in read for tensor in results)
        if not is_view and not self._for_kernels.isdisjoint(read):
            self.flaw = f"{op} reads what is for kernels alone"
        elif traits.depends_on_numbers or _reads_a_mask(op, args):
            self.flaw = f"{op} gives what depends on numbers in a tensor"
        elif traits.writes:
            self.add(partial(op._op, **kwargs), tuple(args))
        elif traits.only_allocates:
            return self.lend(result)
        elif not is_view and _kernel_for(op, args, kwargs, results) is not None:
            return self._add_kernel(op, args, kwargs, results[0])
        elif not is_view:
            self._add_computed(op, args, kwargs, results)
        return result

    def _add_kernel(
        self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor
    ) -> Tensor:
        """Notes a kernel in the operation's place, and returns what that writes."""
        lent = self.lend(result)
        again = _kernel_for(op, args, kwargs, [lent])
        assert again is not None, op
        self.hold(*_tensors(args))
        again()  # the same numbers once more, by a call that is noted
        return lent

    def _add_computed(
        self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], results: list[Tensor]
    ) -> None:
        self.hold(*results)
        if op in COPIES:
            self.add(aten.copy_.default._op, (results[0], args[0]))
        elif len(results) == 1 and (writer := _writer(op)) is not None:
            function, name = writer
            self.add(partial(function._op, **{**kwargs, name: results[0]}), tuple(args))
        else:
            self.add(partial(_copy_results, op, results, kwargs), tuple(args))


class _Recording(threading.local):
    """The tape that this thread records; None: none."""

    tape: Tape | None = None


recording = _Recording()


@contextmanager
def recorded(
    for_kernels: Iterable[Tensor] = (), memory: TapeMemory | None = None
) -> Iterator[Tape]:
    """Records what this thread computes inside; see `Tape` for its arguments."""
    assert recording.tape is None, "a tape is being recorded already"
    tape = recording.tape = Tape(for_kernels, memory)
    try:
        with _Functions(tape), _Operations(tape):
            yield tape
    finally:
        recording.tape = None


class _Operations(TorchDispatchMode):
    """Sees torch's operations, after they are computed."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not asked to, torch doesn't import its compiler, which takes a second of a step."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if _traits(func).is_made_of_others:
            with self:  # those are noted
                # `func.decompose` would make some of them in Python, for which torch imports its
                # symbols, which takes a tenth of a second.
                return func._op_dk(_OF_OTHERS, *args, **kwargs)
        return self._tape.add_operation(func, args, kwargs, func(*args, **kwargs))


class _Functions(TorchFunctionMode):
    """Sees what is asked of tensors without an operation."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _READS:
            self._tape.flaw = f"{resolve_name(func)} lets Python read a tensor"
        elif func is Tensor.data_ptr:
            self._tape.hold(args[0])
        return func(*args, **(kwargs or {}))


def _runs(calls: Sequence[Call]) -> Iterator[Callable[[], None]]:
    """What makes these calls: of kernels side by side, one for all."""
    for are_kernels, some in groupby(calls, lambda call: call.compiled is not None):
        if are_kernels:
            from hybridrt.kernels.cpu.kernel_runs import KernelRun

            yield KernelRun([*some])
        else:
            yield from some


class _Traits(NamedTuple):
    """What is known of an operation before it is called."""

    is_made_of_others: bool
    writes: bool
    """Into what it is given."""
    only_allocates: bool
    depends_on_numbers: bool
    """Whether its result's shape does, or what is no tensor."""


@cache
def _traits(op: OpOverload) -> _Traits:
    of_numbers = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    return _Traits(
        is_made_of_others=torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _OF_OTHERS),
        writes=op._schema.is_mutable,
        only_allocates=op._schema.name.startswith(("aten::empty", "aten::new_empty")),
        depends_on_numbers=op is not aten.index.Tensor and any(t in op.tags for t in of_numbers),
    )


def _reads_a_mask(op: OpOverload, args: Sequence[Any]) -> bool:
    """Whether it indexes by one, on whose numbers its result's shape depends."""
    if op is not aten.index.Tensor:
        return False
    return any(index is not None and index.dtype in _OF_MASKS for index in args[1])


def _kernel_for(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], results: list[Tensor]
) -> Callable[[], None] | None:
    """What writes the only result anew by a kernel; None: there is none for this operation."""
    if len(results) != 1 or (kwargs and op not in COPIES) or not has_numba(results[0]):
        return None
    from hybridrt.kernels.cpu.in_place_of_torch import kernel_for

    return kernel_for(op, args, results[0])


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Those among an operation's arguments or results, and in lists of theirs."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _memory(tensor: Tensor) -> int:
    """Where a tensor's storage begins. oneDNN's own has no address, and no views."""
    return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()


def _copy_results(
    op: OpOverload, results: Sequence[Tensor], kwargs: Mapping[str, Any], *args: Any
) -> None:
    again = op(*args, **kwargs)
    for result, new in zip(results, _tensors([again]), strict=True):
        result.copy_(new)


@cache
def _writer(op: OpOverload) -> tuple[OpOverload, str] | None:
    """The same operation that writes its one result into an argument, and that one's name."""
    wanted = [(argument.name, str(argument.type)) for argument in op._schema.arguments]
    for name in op.overloadpacket.overloads():
        other = getattr(op.overloadpacket, name)
        arguments = other._schema.arguments
        into = [argument.name for argument in arguments if argument.is_out]
        given = [
            (argument.name, str(argument.type)) for argument in arguments if not argument.is_out
        ]
        if len(into) == 1 and given == wanted:
            return other, into[0]
    return None
