"""Traces for heat maps: numbers survive the packing, heads and positions are thinned evenly."""

import base64

import numpy as np
import pytest

from hybridrt.report.heat import INFINITE, MISSING, MOST_HEADS, MOST_POSITIONS, pack_trace
from hybridrt.report.heat import binned_heads as binned
from tests.report.stand_ins import PERIOD, hand_made_trace, plan_of


def unpacked(statistic, layer):
    """The numbers of a layer, as the page's script has them."""
    packed = statistic["layers"][str(layer)]
    codes = np.frombuffer(base64.b64decode(packed["data"]), "<u2").reshape(-1, packed["rows"])
    share, low, high = codes / 65_533, statistic["low"], statistic["high"]
    values = low * (high / low) ** share if statistic["log"] else low + share * (high - low)
    values = np.where(codes == INFINITE, np.inf, values)
    return np.where(codes == MISSING, np.nan, values)


@pytest.mark.parametrize("heads", [1, 4, MOST_HEADS])
def test_numbers_come_back(tmp_path, heads):
    planned = plan_of(PERIOD, tmp_path)
    trace = hand_made_trace(planned, num_positions=5, num_heads=max(heads, 2))
    packed = pack_trace(trace, planned)
    assert packed["positions"] == list(trace.positions)
    for name, statistic in packed["statistics"].items():
        for layer in statistic["layers"]:
            here = trace.statistics[int(layer)][name]
            np.testing.assert_allclose(unpacked(statistic, layer), here, rtol=2e-4, atol=1e-3)


def test_a_layer_has_what_its_kind_has(tmp_path):
    planned = plan_of(PERIOD, tmp_path)
    packed = pack_trace(hand_made_trace(planned, 3, 4), planned)
    states = [str(i) for i, layer in enumerate(planned.layers) if layer.kind == "state"]
    assert list(packed["statistics"]["half_life"]["layers"]) == states
    assert set(packed["statistics"]["attention_first"]["layers"]).isdisjoint(states)


def test_very_many_heads_are_means_of_neighbours():
    table = np.arange(2 * 130, dtype=np.float64).reshape(2, 130)
    small = binned(table)
    assert small.shape == (2, MOST_HEADS)
    assert small[0, 0] == table[0, :2].mean() and small[1, -1] == table[1, -3:].mean()
    assert (np.diff(small[0]) > 0).all()
    table[0, :3] = np.nan
    assert np.isnan(binned(table)[0, 0]) and binned(table)[0, 1] == 3


def test_very_many_positions_are_thinned_with_both_ends_kept(tmp_path):
    planned = plan_of(PERIOD, tmp_path)
    trace = hand_made_trace(planned, num_positions=500, num_heads=2)
    packed = pack_trace(trace, planned)
    assert len(packed["positions"]) == MOST_POSITIONS and packed["positions_in_all"] == 500
    assert packed["positions"][0] == trace.positions[0]
    assert packed["positions"][-1] == trace.positions[-1]


def test_a_statistic_that_is_the_same_everywhere_is_drawn(tmp_path):
    planned = plan_of(PERIOD, tmp_path)
    trace = hand_made_trace(planned, 3, 2)
    for values in trace.statistics.values():
        for table in values.values():
            table[:] = 2.0
    packed = pack_trace(trace, planned)
    for statistic in packed["statistics"].values():
        assert all((unpacked(statistic, layer) == 2).all() for layer in statistic["layers"])
