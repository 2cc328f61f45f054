"""What holds for all tests."""

import gc
import os

import torch

from tests.shared_folder import shared_folder

# torch's compiler imports triton where it is installed, and what triton compiles is bound to its
# interpreter, or not, when it is imported. So this is chosen before any test can import it.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
# Else triton warns that this will be another value some day.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

# What transformers reports while it makes and loads the oracles would hide what failed.
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
# Threads that load weights take longer to hand over a tiny one than to load it.
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"

# Tiny tensors lose more to waking threads than they win. Numba's are as many: kernels/cpu.
torch.set_num_threads(1)

# Made before pytest starts its workers, so that all have the same.
shared_folder()


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the collector needn't look at it again.

    It is some million objects, and each full collection would take most of a second. What tests
    make is looked through less often than by default, which takes a tenth of their time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_unconfigure() -> None:
    """What is left frozen when the process ends, triton's bindings report as leaked."""
    gc.unfreeze()
