"""A plugin of pytest: the processor has no instruction for bfloat16, as those before 2020.

LLVM makes no such instructions then, and refuses its functions for them. It has to be loaded before
hybridrt's kernels are.
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


def pytest_configure() -> None:
    from hybridrt.kernels.cpu.vectors import MULTIPLIES_PAIRS

    assert not MULTIPLIES_PAIRS, "kernels were loaded before this plugin"
