"""Where Triton's kernels are tried: in its interpreter, or where there is one on a GPU.

tests/conftest.py chooses. In the interpreter bfloat16 is silently computed in float32, so there it
is float16.
"""

from collections.abc import Callable
from importlib.util import find_spec
from inspect import signature
from typing import Any

import pytest
import torch

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU and find_spec("triton"):
    from tests.kernels.triton.interpreter import quicken

    quicken()

PLACES = [
    ("cpu", torch.float32),
    ("cpu", torch.float16),
    *(
        pytest.param(("cuda", dtype), marks=pytest.mark.gpu)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ),
]

ON_GPU = pytest.mark.parametrize(
    "place", [pytest.param(("cuda", torch.float32), marks=pytest.mark.gpu)], indirect=True
)
"""For what only a GPU has."""

ONE_DTYPE_HERE = pytest.mark.parametrize(
    "place", [PLACES[0], *PLACES[2:]], indirect=True, ids=["cpu", "float32", "bfloat16", "float16"]
)
"""For what takes the interpreter long, whose float16 has another rounding and nothing else."""

IN_INTERPRETER = pytest.mark.parametrize("place", [("cpu", torch.float32)], indirect=True)
"""For what has its tensors on the CPU."""


@pytest.fixture(params=PLACES, ids=lambda place: f"{place[0]}-{str(place[1])[6:]}")
def place(request: pytest.FixtureRequest) -> tuple[str, torch.dtype]:
    """A device and the dtype of what is computed there."""
    pytest.importorskip("triton")
    if request.param[0] == "cpu" and HAS_GPU:
        pytest.skip("the interpreter is for machines without a GPU")
    return request.param


@pytest.fixture
def put_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Callable[..., Any]], None]:
    """Puts a kernel where a module of tests has its contract."""

    def put(module: Any, name: str, kernel: Callable[..., Any]) -> None:
        arguments = signature(getattr(module, name))

        def run(*args: Any, **kwargs: Any) -> Any:
            given = arguments.bind(*args, **kwargs)
            given.apply_defaults()
            taken = signature(kernel).parameters.keys()
            return kernel(**{key: arg for key, arg in given.arguments.items() if key in taken})

        monkeypatch.setattr(module, name, run)

    return put


@pytest.fixture
def rows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a row's products in the interpreter hang on the row alone, as on a GPU."""
    if not HAS_GPU and find_spec("triton"):
        from tests.kernels.triton.interpreter import exact_dot, interpreter

        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", exact_dot)
