"""Shapes, dtypes and types in signatures are true: jaxtyping and beartype check them in runs."""

import os
import subprocess
import sys

import pytest

from tests.harness.engines import RECORDED
from tests.harness.rows import FIRST_ROWS
from tests.models.checked_forwards import CHECKED, PLACES, ROOT
from tests.oracle import BY_NAME, TINY

_TELLING_ROWS = [
    row
    for row in TINY
    if row.name in RECORDED
    or "unlike-geometries" in row.name
    or "odd-sizes" in row.name
    or (row.model_type == "llama" and "rope" in row.name)
]
"""Rows whose sizes are unlike, so that one can't pass for another, and those that are recorded."""

_TOLD = {row.model_type for row in _TELLING_ROWS}
NAMES = [row.name for row in _TELLING_ROWS]
NAMES += [name for name in FIRST_ROWS if BY_NAME[name].model_type not in _TOLD]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_forwards_of_every_model_keep_their_signatures() -> None:
    result = _run("-m", "tests.models.checked_forwards", *NAMES)
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.split() == NAMES


_WRONG = """
from jaxtyping import install_import_hook
from tests.models.checked_forwards import CHECKED, CHECKER
install_import_hook(CHECKED, CHECKER)
import torch
from hybridrt.layers.rope import Rope
from hybridrt.kernels.write_pages import write_pages
{call}
"""


@pytest.mark.parametrize(
    "call",
    [
        "write_pages(torch.ones(3, 2), torch.ones(2, 4, 2), torch.zeros(2, dtype=torch.int64))",
        "Rope('default', 4)",
    ],
)
def test_a_wrong_shape_or_type_is_seen(call: str) -> None:
    result = _run("-c", _WRONG.format(call=call))
    assert result.returncode != 0
    assert "TypeCheckError" in result.stderr


def test_something_is_checked_in_every_place() -> None:
    for place in PLACES:
        name = place.removesuffix(".py").replace("/", ".")
        assert any(f"{module}.".startswith(f"{name}.") for module in CHECKED), place
