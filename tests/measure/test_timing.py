"""Spreads and turns."""

from hybridrt.measure.timing import Spread, take_turns


def test_a_spread_has_quartiles_inside_its_samples():
    assert Spread.of([4.0, 1.0, 2.0, 3.0, 5.0], 5) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([7.0], 1) == Spread(7.0, 7.0, 7.0, 1)


def test_sides_take_turns_and_the_first_run_is_not_counted():
    calls: list[str] = []

    def side(name, *samples):
        given = iter(samples)

        def run():
            calls.append(name)
            return [next(given)]

        return run

    found = take_turns({"a": side("a", 9.0, 1.0, 2.0), "b": side("b", 9.0, 3.0, 4.0)}, 2)
    assert calls == ["a", "b"] * 3
    assert (found["a"].median, found["b"].median) == (1.5, 3.5)


def test_a_side_that_takes_too_long_runs_once():
    calls: list[str] = []
    sides = {name: lambda name=name: calls.append(name) or [1.0] for name in ("a", "b")}
    found = take_turns(sides, 2, patience=-1.0)
    assert calls == ["a", "b"]
    assert found["a"].runs == 1
