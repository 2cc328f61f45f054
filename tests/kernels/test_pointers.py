"""Kernels name an array for as long as they have pointers to it.

Compiled code gives an array back behind the last place that names it, and a pointer or an address
is no name of it. What is read there later may be anything, and what is written may be another's.
"""

import ast
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import hybridrt.kernels.cpu as kernels

FOLDER = Path(kernels.__path__[0])

OF_NOBODY = {"elements", "halves", "singles", "words", "octets"}
"""These make arrays of an address, of which nobody owns the numbers."""

THE_SAME = {"as_halves", "as_singles", "as_words"}
"""These take an array's memory for other numbers."""


def root_of(node: ast.expr) -> ast.expr:
    """What an attribute, a part or other numbers are taken of."""
    while True:
        match node:
            case ast.Attribute(value=of) | ast.Subscript(value=of):
                node = of
            case ast.Call(func=ast.Name(id=name), args=[of]) if name in THE_SAME:
                node = of
            case _:
                return node


def arrays_behind(value: ast.expr) -> Iterator[ast.expr]:
    """What pointers and addresses in an expression are taken of."""
    for node in ast.walk(value):
        match node:
            case ast.Call(func=ast.Name(id="pointer"), args=[array]):
                yield root_of(array)
            case ast.Attribute(attr="data", value=ast.Attribute(attr="ctypes", value=array)):
                yield root_of(array)


def assignments(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr, int]]:
    """Names, what they are given, and where."""
    for node in ast.walk(function):
        for target in node.targets if isinstance(node, ast.Assign) else []:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = [*zip(target.elts, node.value.elts, strict=True)]
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    yield name.id, value, node.lineno


def outlived(function: ast.FunctionDef) -> Iterator[str]:
    """Pointers that are used where their array may have been given back."""
    given = [*assignments(function)]
    held = {arg.arg for arg in function.args.args}  # by whoever calls
    for name, value, _ in sorted(given, key=lambda assignment: assignment[2]):
        root = root_of(value)
        if isinstance(root, ast.Name) and root.id in held:
            held.add(name)

    def named(name: str) -> list[int]:
        nodes = (node for node in ast.walk(function) if isinstance(node, ast.Name))
        return [n.lineno for n in nodes if n.id == name and isinstance(n.ctx, ast.Load)]

    loops = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(function)
        if isinstance(node, ast.For | ast.While)
    ]
    for name, value, _ in given:
        last = max(named(name), default=0)
        for root in arrays_behind(value):
            if isinstance(root, ast.Call):
                assert isinstance(root.func, ast.Name) and root.func.id in OF_NOBODY, (
                    f"{function.name}: nobody names what {name} points to"
                )
                continue
            assert isinstance(root, ast.Name)
            born = min((line for array, _, line in given if array == root.id), default=0)
            # An array from before a loop stays until that ends if it is named anywhere in it.
            around = [loop for loop in loops if last in loop and born not in loop]
            until = [*named(root.id)]
            until += [loop[-1] for loop in around for line in named(root.id) if line in loop]
            if root.id not in held and max(until) < last:
                yield f"{function.name}: {root.id} isn't named where {name} is, in line {last}"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_arrays_are_named_as_long_as_pointers_are(path: Path) -> None:
    functions = (
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
    )
    assert [line for function in functions for line in outlived(function)] == []


SOURCE = """
def kernel(given, count):
    first, second = aligned(count), aligned(count)
    to_first, to_given = pointer(first), pointer(given)
    for i in range(count):
        to_second = pointer(second)
        store(load(to_first, i), to_second, i)
        store(load(to_given, i), to_second, i)
"""


def test_a_pointer_that_outlives_its_array_is_found() -> None:
    (function,) = ast.parse(SOURCE).body
    assert isinstance(function, ast.FunctionDef)
    assert [*outlived(function)] == ["kernel: first isn't named where to_first is, in line 7"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc writes over memory")
def test_new_memory_has_been_written_over() -> None:
    room = torch.empty(5000, dtype=torch.uint8)
    assert (room == 0x7F).all()
