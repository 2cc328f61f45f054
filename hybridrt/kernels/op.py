"""Kernel contracts as torch ops, so that a compiler takes each of them as a whole.

An op has tensors and numbers as arguments, and its schema says which of them it writes:
`hybridrt::ssd(Tensor x, ..., Tensor(a!) ssm_state, ...) -> Tensor`. `torch_op` makes one of a
contract's signature. A value of several fields is as many arguments, named after both:
`batch: Rows` is `batch_seq_lens`, `batch_cu_seqlens_q` ...

A cache is a view, with a dtype of its own, of the bytes that its layer has in the pool. An op
takes those bytes, and where in them the view is: all caches have one storage, in which those
of unlike groups overlap, and of such inputs torch can follow the writes only if all have one
dtype.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import signature
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from jaxtyping import AbstractArray, Shaped, UInt8
from torch import Tensor
from torch.compiler import is_compiling

P = ParamSpec("P")
R = TypeVar("R")

LIBRARY = torch.library.Library("hybridrt", "FRAGMENT")
"""What holds the ops, `torch.ops.hybridrt.*`."""

Observer = Callable[[str, Mapping[str, Any]], None]
"""Is shown a contract's name and all of its arguments, before it computes."""

_observer: Observer | None = None


@contextmanager
def observed_calls(observer: Observer) -> Iterator[None]:
    """Shows every call of a contract inside to the observer, in whatever thread it is made.

    Calls that a compiler traces are not shown, nor what it has compiled.

    Raises:
        RuntimeError: another observer is looking.
    """
    global _observer
    if _observer is not None:
        raise RuntimeError("calls of kernels are observed already; one observer at a time")
    _observer = observer
    try:
        yield
    finally:
        _observer = None


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """A cache as an op takes it: its layer's bytes, and where in a block's bytes it stands.

    `start` and `stride` count elements of `dtype`. With None for all, `pages` is the cache.
    """

    pages: Tensor
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    start: int | None = None
    dtype: torch.dtype | None = None

    @property
    def view(self) -> Tensor:
        """The cache, `[num_blocks, *size]`."""
        if self.size is None or self.stride is None or self.start is None or self.dtype is None:
            return self.pages
        blocks = self.pages.view(self.dtype)
        size, stride = (blocks.shape[0], *self.size), (blocks.stride(0), *self.stride)
        return blocks.as_strided(size, stride, blocks.storage_offset() + self.start)


def remember_bytes(
    cache: Shaped[Tensor, "num_blocks ..."], pages: UInt8[Tensor, "num_blocks layer_bytes"]
) -> None:
    """Notes on a view of a layer's bytes where in them it is, for the ops that take it."""
    cache.cache_bytes = CacheBytes(  # pyright: ignore[reportAttributeAccessIssue]
        pages,
        tuple(cache.shape[1:]),
        cache.stride()[1:],
        int(cache.storage_offset()) - int(pages.storage_offset()) // cache.itemsize,
        cache.dtype,
    )


def is_observed() -> bool:
    """Whether somebody is shown calls."""
    return _observer is not None


def torch_op(
    fake: Callable[..., Tensor | None], *, writes: Sequence[str] = (), reads: Sequence[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Registers a contract as the op `hybridrt::<its name>`, for every device.

    `writes` and `reads` name the arguments that are caches. `fake` takes the contract's
    arguments and gives a result of the right shape and dtype, without its values. The op is
    called where a compiler traces; elsewhere the contract itself is, which is faster by some
    microseconds.
    """

    def register(contract: Callable[P, R]) -> Callable[P, R]:
        arguments = _arguments(contract, writes, reads)
        op = _define(contract, fake, arguments)

        @wraps(contract)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not is_compiling():
                if _observer is not None:
                    defaults = {name: argument.default for name, argument in arguments.items()}
                    given = dict(zip(arguments, args, strict=False)) | kwargs
                    _observer(contract.__name__, defaults | given)
                return contract(*args, **kwargs)
            given = dict(zip(arguments, args, strict=False)) | kwargs
            flat: list[Any] = []
            for name, argument in arguments.items():
                flat += argument.flatten(given.get(name, argument.default))
            return op(*flat)

        return call

    return register


def like_first(first: Tensor, *_: object) -> Tensor:
    """The fake of a result that has the shape and dtype of the first argument."""
    return torch.empty_like(first)


def nothing(*_: object) -> None:
    """The fake of no result."""


class _Argument:
    """A tensor or a number: one argument of the op."""

    def __init__(self, name: str, kind: str) -> None:
        self.default: Any = None
        self.schema = [f"{kind} {name}"]

    def flatten(self, value: Any) -> list[Any]:
        """The op's arguments for the contract's."""
        return [value]

    def take(self, flat: Iterator[Any]) -> Any:
        """The contract's argument, made of the op's next ones."""
        return next(flat)


class _Value(_Argument):
    """A dataclass: an argument for each field. Where it may be None, all of them may be."""

    def __init__(self, name: str, of: Any, optional: bool) -> None:
        super().__init__(name, "")
        self.of = of
        self.optional = optional
        self.fields = [field.name for field in fields(of)]
        hints = get_type_hints(of)
        kinds = [_kind(hints[field] | None if optional else hints[field]) for field in self.fields]
        self.schema = [f"{kind} {name}_{f}" for kind, f in zip(kinds, self.fields, strict=True)]

    def flatten(self, value: Any) -> list[Any]:
        return [None if value is None else getattr(value, field) for field in self.fields]

    def take(self, flat: Iterator[Any]) -> Any:
        values = [next(flat) for _ in self.fields]
        return None if self.optional and values[0] is None else self.of(*values)


class _Cache(_Value):
    """A view of a layer's bytes."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(name, CacheBytes, kind.endswith("?"))
        self.schema[0] = f"{kind} {name}"

    def flatten(self, value: Any) -> list[Any]:
        if value is not None:
            value = getattr(value, "cache_bytes", None) or CacheBytes(value)
        return super().flatten(value)

    def take(self, flat: Iterator[Any]) -> Any:
        cache = super().take(flat)
        return None if cache is None else cache.view


def _define(
    contract: Callable[..., Any], fake: Callable[..., Any], arguments: Mapping[str, _Argument]
) -> Callable[..., Any]:
    def of_flat(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*flat: Any) -> Any:
            rest = iter(flat)
            return function(*[argument.take(rest) for argument in arguments.values()])

        return call

    name = contract.__name__
    schema = ", ".join(part for argument in arguments.values() for part in argument.schema)
    result = "()" if get_type_hints(contract)["return"] is NoneType else "Tensor"
    LIBRARY.define(f"{name}({schema}) -> {result}", tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, of_flat(contract), "CompositeExplicitAutograd")
    torch.library.register_fake(f"hybridrt::{name}", of_flat(fake), lib=LIBRARY)
    return getattr(torch.ops.hybridrt, name).default


def _arguments(
    contract: Callable[..., Any], writes: Sequence[str], reads: Sequence[str]
) -> dict[str, _Argument]:
    hints = get_type_hints(contract)
    arguments: dict[str, _Argument] = {}
    for name, parameter in signature(contract).parameters.items():
        if name in writes:
            written = f"Tensor({'abcdef'[writes.index(name)]}!)"
            arguments[name] = _Cache(name, _kind(hints[name]).replace("Tensor", written))
        elif name in reads:
            arguments[name] = _Cache(name, _kind(hints[name]))
        else:
            arguments[name] = _argument(name, hints[name])
        arguments[name].default = parameter.default
    assert arguments.keys() >= {*writes, *reads}, f"{contract.__name__} has other arguments"
    return arguments


def _argument(name: str, hint: Any) -> _Argument:
    parts, optional = _parts(hint)
    if is_dataclass(parts[0]):
        return _Value(name, parts[0], optional)
    return _Argument(name, _kind(hint))


_KINDS = {
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    tuple[int, ...]: "SymInt[]",
    torch.dtype: "ScalarType",
    Tensor: "Tensor",
}


def _kind(hint: Any) -> str:
    """What a schema calls the type."""
    parts, optional = _parts(hint)
    (kind,) = {_KINDS[_plain(part)] for part in parts}
    return kind + "?" * optional


def _plain(hint: Any) -> Any:
    """The type without a shape or a choice of values."""
    if get_origin(hint) is Literal:
        return type(get_args(hint)[0])
    return Tensor if isinstance(hint, type) and issubclass(hint, AbstractArray) else hint


def _parts(hint: Any) -> tuple[list[Any], bool]:
    """The types of a union but None, and whether None is among them."""
    union = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [part for part in union if part is not NoneType], NoneType in union
