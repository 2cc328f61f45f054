"""A plugin of pytest: the processor lacks what `HYBRIDRT_TEST_WITHOUT` says, as older ones do.

`bfloat16`: instructions for it, as before 2020. `avx512`: all of AVX-512, as in laptops of today.
LLVM makes no such instructions then, and refuses its functions for them. It has to be loaded before
hybridrt's kernels are.
"""

import os
from typing import Any

from llvmlite import binding

_BEGINNINGS = {"bfloat16": ("amx",), "avx512": ("amx", "avx512", "avx10", "evex")}
_ENDS = ("bf16", "fp16")
_features, _absent = binding.get_host_cpu_features, _BEGINNINGS[os.environ["HYBRIDRT_TEST_WITHOUT"]]


def _lesser_features() -> Any:
    found = _features()
    absent = [name for name in found if name.startswith(_absent) or name.endswith(_ENDS)]
    found.update(dict.fromkeys(absent, False))
    return found


binding.get_host_cpu_features = _lesser_features
