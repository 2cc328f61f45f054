"""The same numbers, lying in memory in other ways, or in other dtypes."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}


def other_ways(x: Tensor) -> dict[str, Tensor]:
    """How else these numbers may lie; between them is poison, if anything."""
    ways = {"with gaps": _spread(x, -1)}
    if x.dim() > 1:
        ways["rows apart"] = _spread(x, 0)
        ways["by columns"] = x.transpose(0, -1).contiguous().transpose(0, -1)
    if x.dim() > 2:
        ways["heads first"] = x.transpose(0, 1).contiguous().transpose(0, 1)
    return ways


def _spread(x: Tensor, axis: int) -> Tensor:
    shape = list(x.shape)
    shape[axis] *= 3
    poison = torch.nan if x.is_floating_point() else 77
    wide = torch.full(shape, poison, dtype=x.dtype, device=x.device)
    places = [slice(None)] * x.dim()
    places[axis] = slice(1, None, 3)
    wide[tuple(places)] = x
    return wide[tuple(places)]


def assert_strides_change_nothing(run: Callable[..., Any], args: Sequence[Any]) -> None:
    """Whichever tensor of the arguments lies in another way, the results are those."""
    expected = tensors_of(run(*args))
    for i, arg in enumerate(args):
        for way, laid in other_ways(arg).items() if isinstance(arg, Tensor) else ():
            found = tensors_of(run(*args[:i], laid, *args[i + 1 :]))
            for one, right in zip(found, expected, strict=True):
                assert_alike(one, right, f"argument {i} {way}")


def assert_dtypes_are_seen(run: Callable[..., Any], args: Sequence[Any]) -> None:
    """Whichever of the arguments has another dtype, the results are those, or it is refused."""
    expected = [part for part in tensors_of(run(*args)) if part.is_floating_point()]
    for i, arg in enumerate(args):
        if not isinstance(arg, Tensor) or not arg.is_floating_point():
            continue
        for dtype in DTYPES - {arg.dtype}:
            try:
                results = tensors_of(run(*args[:i], arg.to(dtype), *args[i + 1 :]))
            except _refusals():
                continue
            found = [part for part in results if part.is_floating_point()]
            for one, right in zip(found, expected, strict=True):
                # Rounded numbers may choose others here and there; bits that mean others do so
                # everywhere, and what stands behind a tensor is far from anything.
                scale = right.float().nan_to_num().abs().max().item()
                apart = (one.float() - right.float()).nan_to_num(torch.inf)[~right.isnan()].abs()
                assert (apart > 0.1 * scale).float().mean() < 0.05, f"argument {i} as {dtype}"


@cache
def _refusals() -> tuple[type[Exception], ...]:
    """What kernels raise; on a GPU it may be Triton's compiler that does."""
    raised = RuntimeError, AssertionError, TypeError, ValueError
    try:
        from triton.compiler import CompilationError
    except ImportError:
        return raised
    return *raised, CompilationError


def assert_alike(found: Tensor, expected: Tensor, what: str) -> None:
    """Another kernel, which takes what lies so, may round in other places."""
    if not expected.is_floating_point():
        assert torch.equal(found, expected), what
        return
    error = {torch.float32: 1e-5}.get(expected.dtype, 2.0**-6)
    scale = max(expected.float().abs().max().item(), 1e-30) if expected.numel() else 1.0
    difference = (found.float() - expected.float()).abs()
    assert (difference <= error * scale).all(), what  # NaN isn't


def tensors_of(result: Any) -> list[Tensor]:
    """A result, or all of those in a tuple."""
    if isinstance(result, Tensor):
        return [result]
    return [] if result is None else [part for one in result for part in tensors_of(one)]
