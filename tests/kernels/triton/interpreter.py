"""What tests change in Triton's interpreter.

For all of them, what it does again and again to no end is taken from it: the results are the same,
in less time. For some, rows of a product don't hang on where they stand.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_patch = interpreter._patch_lang
_numpy_dtype = interpreter._get_np_dtype

_patched: list[Any] = []
_known: dict[str, Any] = {}


def quicken() -> None:
    """For all kernels of this process."""
    # Every sum of integers is taken once more, with 64 bits; what is wrong is said in debug alone.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._patch_lang = _patch_once
    interpreter._get_np_dtype = _numpy_dtype_of


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


def exact_dot(builder: Any, a: Any, b: Any, total: Any, *options: Any) -> Any:
    """A product of tiles that is summed in float64.

    On processors without AVX-512 numpy's sums in float32 depend on where in its tile a row stands;
    a GPU's don't.
    """
    product = np.matmul(a.data, b.data, dtype=np.float64) + total.data
    return interpreter.TensorHandle(product.astype(total.data.dtype), total.dtype.scalar)
