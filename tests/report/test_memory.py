"""Memory against length: the plan's own numbers, and what full attention would need."""

from itertools import pairwise

import pytest

from hybridrt.report.chart import HEIGHT, WIDTH, length_text, memory_chart, named_curves
from hybridrt.report.memory import LONGEST, curve_lengths, full_attention_bytes, memory_curves
from tests.report.stand_ins import KV, PERIOD, STATE, plan_of

KV_BYTES = 2 * 8 * 128 * 2  # keys and values, heads, dim, bytes


def test_curves_are_the_plans_bytes_and_their_kinds_add_up(tmp_path):
    planned = plan_of(PERIOD, tmp_path)
    curves = memory_curves(planned, 100_000)
    assert curves.lengths[0] == 16 and curves.lengths[-1] == 100_000
    assert list(curves.total) == [planned.bytes_for(n) for n in curves.lengths]
    assert list(map(sum, zip(*curves.by_kind.values(), strict=True))) == list(curves.total)
    at = curves.lengths.index(4096)
    assert curves.by_kind["window"][at] == 1024 * KV_BYTES
    assert curves.by_kind["full"][at] == 4096 * KV_BYTES
    assert len(set(curves.by_kind["state"])) == 1


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([KV] * 4, 4 * KV_BYTES),
        ([KV, STATE, STATE, STATE], 4 * KV_BYTES),
        ([{**KV, "window": 64}, STATE], 2 * KV_BYTES),
        ([KV, {**KV, "num_kv_heads": 4}, STATE], 1.5 * KV_BYTES + 0.75 * KV_BYTES),
    ],
)
def test_full_attention_is_every_layer_with_the_mean_of_those_that_attend(
    tmp_path, layers, expected
):
    assert full_attention_bytes(plan_of(layers, tmp_path))[0] == expected


def test_without_attention_it_is_as_wide_as_the_hidden_size_or_unknown(tmp_path):
    planned = plan_of([STATE] * 3, tmp_path)
    assert full_attention_bytes(planned, hidden_bytes=100)[0] == 3 * 2 * 100
    assert full_attention_bytes(planned)[0] is None
    assert "compared" not in named_curves(memory_curves(planned))


@pytest.mark.parametrize("longest", [1, 10, 16, 17, 2048, 100_000, None])
def test_lengths_rise_to_the_longest(longest):
    lengths = curve_lengths(longest)
    assert lengths[-1] == (longest or LONGEST)
    assert list(lengths) == sorted(set(lengths))


@pytest.mark.parametrize("layers", [PERIOD, [STATE], [KV]])
@pytest.mark.parametrize("longest", [1, 16, 5000, None])
def test_lines_lie_inside_the_picture_and_labels_apart(tmp_path, layers, longest):
    chart = memory_chart(memory_curves(plan_of(layers, tmp_path), longest))
    for line in chart["lines"]:
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in line["points"])
    places = [label["at"] for label in chart["labels"]]
    assert all(b - a >= 15 for a, b in pairwise(places))
    assert chart["x_ticks"] and chart["y_ticks"]


def test_lengths_for_people():
    assert [length_text(n) for n in (16, 1000, 1024, 131_072, 2**20)] == [
        "16", "1,000", "1k", "128k", "1M",
    ]  # fmt: skip
