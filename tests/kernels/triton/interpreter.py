"""What tests change in Triton's interpreter.

For all of them, what it does again and again to no end is taken from it: the results are the same,
in less time. For some, rows of a product don't hang on where they stand.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_patch = interpreter._patch_lang
_numpy_dtype = interpreter._get_np_dtype

_block_type = tl.block_type.__init__
_broadcast = TritonSemantic.broadcast_impl_value

_patched: list[Any] = []
_known: dict[str, Any] = {}
_shapes: dict[tuple[int, ...], "_Shape"] = {}
_broadcasts: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = {}


class _Shape(NamedTuple):
    """What Triton makes of a block's shape for each type that has it and for each tensor."""

    sizes: tuple[int, ...]
    shape: Any  # the same in Triton's kind of tuple
    numel: int
    constants: Any  # shape and numel again, as what a kernel knows when it is compiled
    constant_numel: Any
    name: str


def quicken() -> None:
    """For all kernels of this process."""
    # Every sum of integers is taken once more, with 64 bits; what is wrong is said in debug alone.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._patch_lang = _patch_once
    interpreter._get_np_dtype = _numpy_dtype_of
    tl.block_type.__init__ = _block_type_of_known_shape
    tl.tensor.__init__ = _tensor_of_known_shape
    interpreter._patch_attr = _patch_builtin_once
    TritonSemantic.broadcast_impl_value = _broadcast_if_shapes_differ


def _patch_once(function: Any) -> Any:
    """Triton puts its interpreter in the language's place at every launch, and below it at every
    call. Nothing else is wanted of the language here, so it stays there."""
    seen = function.__globals__.values()
    for part in (tl, tl.core):
        if part not in _patched and any(value is part for value in seen):
            _patched.append(part)
            _patch(function)
    return interpreter._LangPatchScope()


def _numpy_dtype_of(dtype: Any) -> Any:
    """Triton makes the table of all dtypes for each one that it looks up."""
    name = dtype.scalar.name
    if name not in _known:
        _known[name] = _numpy_dtype(dtype)
    return _known[name]


def _block_type_of_known_shape(self: Any, element_ty: Any, shape: Any) -> None:
    """Triton checks each block's shape, and writes its name, as often as a kernel makes one."""
    sizes = tuple(shape)
    known = _shapes.get(sizes)
    if known is None:
        _block_type(self, element_ty, shape)
        constants = tl.tuple([tl.constexpr(size) for size in self.shape])
        numel = tl.constexpr(self.numel)
        known = _Shape(sizes, self.shape, self.numel, constants, numel, str(self.shape))
        _shapes[sizes] = known
    self.element_ty = element_ty
    self.shape, self.numel = known.shape, known.numel
    self.name = f"<{known.name}, {element_ty}>"
    self.known = known


def _tensor_of_known_shape(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    known = type.known if type.is_block() else _SCALAR
    self.shape, self.numel = known.constants, known.constant_numel


_SCALAR = _Shape((), (), 1, tl.tuple([]), tl.constexpr(1), "")


def _broadcast_if_shapes_differ(self: Any, lhs: Any, rhs: Any) -> Any:
    if lhs.shape is rhs.shape:
        return lhs, rhs
    if len(lhs.shape) != len(rhs.shape):  # and if one is a scalar
        return _broadcast(self, lhs, rhs)
    pair = lhs.type.known.sizes, rhs.type.known.sizes
    if pair not in _broadcasts:
        _broadcasts[pair] = _broadcast(self, lhs, rhs)[0].type.known.sizes
    sizes = _broadcasts[pair]
    return _spread(self, lhs, sizes), _spread(self, rhs, sizes)


def _spread(semantic: Any, block: Any, sizes: tuple[int, ...]) -> Any:
    if block.type.known.sizes == sizes:
        return block
    handle = semantic.builder.create_broadcast(block.handle, sizes)
    return semantic.make_tensor(handle, tl.block_type(block.dtype, list(sizes)))


def _patch_builtin_once(target: Any, name: str, member: Any, _: Any, scope: Any) -> None:
    """Triton calls a function's check of what is given here in any case, after two copies of its
    options."""
    function, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def call(*args: Any, **options: Any) -> Any:
        options["_semantic"] = semantic
        return function(*args, **options)

    scope.set_attr(target, name, call)


def exact_dot(builder: Any, a: Any, b: Any, total: Any, *options: Any) -> Any:
    """A product of tiles that is summed in float64.

    On processors without AVX-512 numpy's sums in float32 depend on where in its tile a row stands;
    a GPU's don't.
    """
    product = np.matmul(a.data, b.data, dtype=np.float64) + total.data
    return interpreter.TensorHandle(product.astype(total.data.dtype), total.dtype.scalar)
