"""Processors with AVX-512 and no instruction for bfloat16, as Cascade Lake and Ice Lake."""

from pathlib import Path

import pytest

from hybridrt.kernels.cpu.vectors import HAS_REGISTERS
from tests.harness.other_processors import run_without

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
    run_without("bfloat16", "AVX512_CORE", TESTS, tmp_path)
