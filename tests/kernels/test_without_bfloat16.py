"""Processors with AVX-512 and no instruction for bfloat16, as Cascade Lake and Ice Lake."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridrt.kernels.cpu.vectors import HAS_REGISTERS

ROOT = Path(__file__).parents[2]

TESTS = (
    "kernels/test_vectors.py",
    "kernels/test_packed_linear.py::test_alone_is_as_beside_others",
    "kernels/test_packed_linear.py::test_blocks_are_our_own_where_our_kernel_takes_any_number",
    "kernels/test_packed_linear.py::test_is_the_product",
    "kernels/test_tiles.py::test_either_way_it_is_the_product[1-False-False]",
    "kernels/test_tiles.py::test_either_way_it_is_the_product[40-True-False]",
    "kernels/test_quantised_linear.py::test_products_on_every_kind_of_processor[8-True-2]",
    "kernels/test_blocked_moe.py::test_packing_blocks_what_has_whole_blocks_and_it_can_be_read_again",
    "layers/test_linear.py::test_a_packed_weight_can_be_read_again",
    "layers/test_linear.py::test_rows_that_are_sorted_are_still_those_of_the_checkpoint",
)
"""All is compiled anew: of attention and experts the products only, or it would take minutes."""


@pytest.mark.skipif(not HAS_REGISTERS, reason="the processor has no AVX-512")
def test_kernels_of_bfloat16_do_without_its_instructions(tmp_path: Path) -> None:
    # On disk numba tells processors apart by what they are, and not by what they are made to be.
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "PYTHONPATH": str(ROOT),
    }
    options = ("-p", "tests.harness.without_bfloat16", "-p", "no:cacheprovider", "-q", "-x")
    tests = [f"tests/{test}" for test in TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout + done.stderr
