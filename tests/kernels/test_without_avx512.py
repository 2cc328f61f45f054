"""Processors with AVX2 alone: kernels that take less at once there, as there are 16 registers."""

from pathlib import Path

import pytest

from hybridrt.kernels.cpu.vectors import HAS_REGISTERS
from tests.harness.other_processors import run_without

TESTS = (
    "kernels/test_vectors.py",
    "kernels/test_ssd.py::test_equals_the_recurrence[cpu-numba-bfloat16]",
    "kernels/test_ssd.py::test_sizes_of_models_in_bfloat16",
    "kernels/test_gated_delta_rule.py::test_columns_are_the_same_alone_and_among_others",
    "kernels/test_gated_delta_rule.py::test_equals_the_recurrence[cpu-numba-bfloat16-per head]",
    "kernels/test_mla_project.py",
    "kernels/test_paged_attention.py::test_threads_do_not_change_a_decode",
    "kernels/test_paged_attention.py::test_many_decodes_of_many_key_heads",
    "kernels/test_quantised_linear.py::test_products_on_every_kind_of_processor[4-False-3]",
    "kernels/test_rounded_heads.py::test_queries_are_taken_to_latents",
)


@pytest.mark.skipif(not HAS_REGISTERS, reason="here all other tests are such")
def test_kernels_do_with_fewer_registers(tmp_path: Path) -> None:
    run_without("avx512", "AVX2", TESTS, tmp_path)
