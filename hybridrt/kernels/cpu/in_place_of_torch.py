"""Kernels that a tape calls in the place of torch's operations, whose results are theirs.

Of the few numbers of a decode step, torch's call takes many times as long as they need.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from hybridrt.kernels.backend import has_numba, numba_takes
from hybridrt.kernels.cpu.copies import copy_rows, take_rows, widen
from hybridrt.kernels.cpu.elementwise import add, multiply
from hybridrt.kernels.cpu.jit import FEW
from hybridrt.kernels.tape import COPIES

aten = torch.ops.aten

_ELEMENTWISE = {aten.add.Tensor: add, aten.mul.Tensor: multiply}
_TAKEN = frozenset((*_ELEMENTWISE, *COPIES, aten.embedding.default, aten.cat.default))

Write = Callable[[], None]
"""Writes the result of an operation anew."""


def kernel_for(op: OpOverload, args: Sequence[Any], out: Tensor) -> Write | None:
    """What writes the result of `op` to `out`, if a kernel does; None if not."""
    if op not in _TAKEN or out.layout is not torch.strided:
        return None
    if not out.is_contiguous() or out.numel() == 0:
        return None
    if op in _ELEMENTWISE:
        x, y = args
        return partial(_ELEMENTWISE[op], x, y, out) if _are_alike(x, y) else None
    if op is aten.embedding.default:
        table, numbers, *_ = args
        return partial(take_rows, table, numbers, out) if _is_table(table, numbers) else None
    return _join(*args, out=out) if op is aten.cat.default else _copy(args[0], out)


def _copy(x: Tensor, out: Tensor) -> Write | None:
    if x.dtype == out.dtype:
        return _copy_rows(x, out)
    is_widened = numba_takes(x) and out.dtype == torch.float32 and x.is_contiguous()
    return partial(widen, x, out) if is_widened else None


def _copy_rows(x: Tensor, out: Tensor) -> Write | None:
    """Many numbers are copied by torch, which has all threads do it."""
    if x.is_contiguous() and out.is_contiguous():
        x, out = x.view(1, 1, -1), out.view(1, 1, -1)
    if not 1 <= x.dim() <= 3 or x.numel() > FEW or not has_numba(x, out):
        return None
    if x.shape[-1] > 1 and (x.stride(-1) != 1 or out.stride(-1) != 1):
        return None
    ones = (1,) * (3 - x.dim())
    x, out = (part.view(*ones, *part.shape) for part in (x, out))
    return partial(copy_rows, x, out)


def _join(parts: Sequence[Tensor], dim: int = 0, *, out: Tensor) -> Write | None:
    parts = [part for part in parts if part.numel()]
    into = out.split([part.shape[dim] for part in parts], dim)
    writes: list[Write] = []
    for part, place in zip(parts, into, strict=True):
        write = _copy_rows(part, place) if part.dtype == out.dtype else None
        if write is None:
            return None
        writes.append(write)
    return partial(_do_all, writes)


def _do_all(writes: Sequence[Write]) -> None:
    for write in writes:
        write()


def _are_alike(x: Tensor, y: Any) -> bool:
    if not isinstance(y, Tensor) or x.shape != y.shape:
        return False
    return x.is_contiguous() and y.is_contiguous() and numba_takes(x, y)


def _is_table(table: Tensor, numbers: Tensor) -> bool:
    if not has_numba(table, numbers) or numbers.dtype != torch.int64:
        return False
    return table.is_contiguous() and numbers.is_contiguous()
