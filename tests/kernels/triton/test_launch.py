"""What all kernels have in common when they are launched."""

import ast
from pathlib import Path

import triton

import hybridrt.kernels.triton
from hybridrt.kernels.triton.launch import cdiv, next_power_of_2

FILES = sorted(Path(hybridrt.kernels.triton.__path__[0]).glob("*.py"))
WAITS = {"wait_for_earlier", "wait_and_hold_back"}
BEFORE_IT_READS_WEIGHTS_ALONE = {
    *(
        "one_row._multiply",
        "one_row_pair._multiply_both",
        "one_row_experts._to_inner",
        "mla_project._project",
        "mla_values._join_and_expand",
    ),
}
IS_HELD_BACK = {"one_row_from_inner._from_inner"}
"""By the kernel before it, until what it reads before its wait is there."""


def test_every_kernel_waits_for_those_before_it_and_no_other_function_does() -> None:
    """A kernel that didn't would read what isn't written yet, on a GPU that starts it early."""
    found: set[str] = set()
    for path in FILES:
        for function in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(function, ast.FunctionDef) or function.name in WAITS:
                continue
            name = f"{path.stem}.{function.name}"
            decorators = {ast.unparse(d).split("(")[0] for d in function.decorator_list}
            waits = [ast.unparse(part) in {f"{name}()" for name in WAITS} for part in function.body]
            is_kernel = "kernel" in decorators
            assert sum(waits) == is_kernel, name
            if not is_kernel:
                continue
            found.add(name)
            first = 1 if ast.get_docstring(function) else 0
            may_read = BEFORE_IT_READS_WEIGHTS_ALONE | IS_HELD_BACK
            assert waits[first] or name in may_read, name
    assert len(found) > 30


def test_sizes_of_grids_are_those_that_triton_gives() -> None:
    for number in range(1, 70):
        assert next_power_of_2(number) == triton.next_power_of_2(number)
        assert [cdiv(number, n) for n in (1, 7, 64)] == [triton.cdiv(number, n) for n in (1, 7, 64)]
        assert cdiv(0, number) == 0
