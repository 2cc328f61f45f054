"""A plugin of pytest: the processor has no instruction for bfloat16, as those before 2020.

LLVM refuses such instructions then, even where they are asked for by name. It has to be loaded
before numba is.
"""

from typing import Any

from llvmlite import binding

_features = binding.get_host_cpu_features


def _without_bfloat16() -> Any:
    found = _features()
    absent = [name for name in found if name.startswith("amx") or name.endswith(("bf16", "fp16"))]
    found.update(dict.fromkeys(absent, False))
    return found


binding.get_host_cpu_features = _without_bfloat16
