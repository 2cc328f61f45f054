"""Rows of the stack: one a layer, with what it caches, whatever it is made of."""

from dataclasses import dataclass

import pytest

from hybridrt.report.stack import stack_lengths, stack_rows
from tests.report.stand_ins import KV, STATE, plan_of


@dataclass(frozen=True)
class Part:
    name: str
    is_layer: bool
    modules: tuple[str, ...]
    parameters: int = 10
    parameter_bytes: int = 20


def test_parts_that_are_layers_have_a_row_each(tmp_path):
    planned = plan_of([KV, STATE], tmp_path)
    parts = [
        Part("embed_tokens", False, ("Embedding",)),
        Part("layers.0", True, ("attention", "MLP")),
        Part("layers.1", True, ("Parallel", "MLP")),
        Part("layers.11", True, ("MLP",)),
    ]
    rows = stack_rows(planned, parts)
    assert [row["label"] for row in rows] == ["0", "1", "11"]
    assert [row["modules"] for row in rows] == [
        ["attention", "MLP"],
        ["Parallel (mamba2)", "MLP"],
        ["MLP"],
    ]
    assert [[one["name"] for one in row["cached"]] for row in rows] == [
        ["layers.0"],
        ["layers.1"],
        [],
    ]
    assert [[one["letter"] for one in row["cached"]] for row in rows] == [["F"], ["S"], []]


def test_a_plan_alone_has_a_row_for_each_layer_that_caches(tmp_path):
    rows = stack_rows(plan_of([KV, STATE, {**KV, "window": 8}], tmp_path))
    assert [(row["label"], row["modules"]) for row in rows] == [
        ("0", ["attention"]),
        ("1", ["mamba2"]),
        ("2", ["attention"]),
    ]
    assert rows[2]["cached"][0]["window"]["size"] == 8


@pytest.mark.parametrize("longest", [1, 256, 257, 2_000_000, None])
def test_lengths_end_at_the_longest(longest):
    lengths = stack_lengths(longest)
    assert lengths == sorted(set(lengths)) and (longest is None or lengths[-1] == longest)
