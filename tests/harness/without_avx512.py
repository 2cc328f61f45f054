"""A plugin of pytest: the processor has AVX2 and nothing wider, as AMD's before 2022.

It has to be loaded before hybridrt's kernels are.
"""

from typing import Any

from llvmlite import binding

_features = binding.get_host_cpu_features


def _without_avx512() -> Any:
    found = _features()
    wider = [name for name in found if name.startswith(("amx", "avx512", "avx10"))]
    found.update(dict.fromkeys(wider, False))
    return found


binding.get_host_cpu_features = _without_avx512


def pytest_configure() -> None:
    from hybridrt.kernels.cpu.vectors import HAS_REGISTERS

    assert not HAS_REGISTERS, "kernels were loaded before this plugin"
