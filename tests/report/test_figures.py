"""Figures for papers: what goes in is right, and every format is written."""

import sys

import numpy as np
import pytest

from hybridrt.report.chart import CURVE_LABELS, named_curves
from hybridrt.report.figures import (
    FORMATS,
    memory_figure,
    page_bytes,
    pages_figure,
    save_figure,
    state_numbers,
    states_figure,
)
from hybridrt.report.memory import memory_curves
from tests.report.stand_ins import KV, PERIOD, hand_made_frames, hand_made_trace, plan_of

HEADS = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


def test_lines_of_memory_are_the_curves(tmp_path):
    curves = memory_curves(plan_of(PERIOD, tmp_path), 5000)
    (axes,) = memory_figure(curves).axes
    drawn = {line.get_label(): line for line in axes.lines}
    assert len(drawn) == 5
    for name, values in named_curves(curves).items():
        line = drawn[CURVE_LABELS[name]]
        np.testing.assert_array_equal(line.get_xdata(), curves.lengths)
        np.testing.assert_array_equal(line.get_ydata(), values)


def test_states_are_the_means_and_medians_of_the_trace(tmp_path):
    planned = plan_of(PERIOD, tmp_path)
    trace = hand_made_trace(planned, 6, 5)
    numbers = state_numbers(trace, planned)
    states = [i for i, layer in enumerate(planned.layers) if layer.kind == "state"]
    assert numbers.labels[3] == "4  mamba2" and len(numbers.labels) == len(states)
    for row, layer in enumerate(states):
        found = trace.statistics[layer]
        np.testing.assert_allclose(numbers.norms[row], found["state_norm"].mean(1))
        np.testing.assert_array_equal(numbers.half_lives[row], np.median(found["half_life"], 0))
    left, right, *_ = states_figure(numbers).axes
    np.testing.assert_array_equal(left.collections[0].get_array(), numbers.norms)
    # The first layer has an infinite half-life and an unknown one, which have no place.
    assert [len(line.get_xdata()) for line in right.lines] == [3, *[5] * (len(states) - 1)]


def test_a_model_without_states_has_no_such_figure(tmp_path):
    planned = plan_of([KV], tmp_path)
    with pytest.raises(ValueError, match="no layer with a state"):
        state_numbers(hand_made_trace_of_attention(planned), planned)


def hand_made_trace_of_attention(planned):
    from tests.report.stand_ins import HandMadeTrace

    return HandMadeTrace((16,), (0,), {0: {"kv_norm": np.ones((1, 2), np.float32)}})


def test_pages_are_the_bytes_that_the_maps_have(tmp_path):
    planned = plan_of(PERIOD, tmp_path)
    frames = hand_made_frames(planned, 4)
    sizes = page_bytes(frames)
    for step, frame in enumerate(frames):
        sums = frame.map.bytes
        held = sizes["own"][step] + sizes["shared"][step] + sizes["cached"][step]
        assert held == sums["in_use"] + sums["cached"]
        assert sizes["shared"][step] == frame.map.shared_bytes
    (axes,) = pages_figure(frames).axes
    assert len(axes.collections) == 3
    top = max(path.vertices[:, 1].max() for path in axes.collections[-1].get_paths())
    total = sum(sizes.values()).max()
    assert top == pytest.approx(total / 2**30 if total >= 2**30 else total / 2**20)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_is_written_the_same_way_twice(tmp_path, suffix):
    curves = memory_curves(plan_of(PERIOD, tmp_path), 5000)
    for name in ("a", "b"):
        save_figure(memory_figure(curves), tmp_path / f"{name}.{suffix}")
    written = (tmp_path / f"a.{suffix}").read_bytes()
    assert written.startswith(HEADS[suffix])
    assert written == (tmp_path / f"b.{suffix}").read_bytes()


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    curves = memory_curves(plan_of(PERIOD, tmp_path), 5000)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'hybridrt\[viz\]'"):
        memory_figure(curves)
