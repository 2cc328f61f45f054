"""Where the lines of the chart of memory against length lie, both axes logarithmic."""

from dataclasses import dataclass
from math import ceil, floor, log2
from typing import Any

from hybridrt.cache.explain import size_text
from hybridrt.report.memory import MemoryCurves

WIDTH, HEIGHT = 960, 400
LEFT, RIGHT, TOP, BOTTOM = 84, 216, 16, 52
_LABEL_HEIGHT = 19
CURVE_LABELS = {
    "compared": "full attention everywhere",
    "total": "this model",
    "full": "of it: attention, MLA",
    "window": "of it: windows",
    "state": "of it: states",
}


@dataclass(frozen=True, slots=True)
class Scale:
    """From a value to a coordinate: `start` at the value `low`, `end` at `high`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The coordinate, rounded to a tenth, which is finer than a pixel."""
        share = (log2(value) - log2(self.low)) / (log2(self.high) - log2(self.low))
        return round(self.start + share * (self.end - self.start), 1)


def memory_chart(curves: MemoryCurves) -> dict[str, Any]:
    """Axes, lines and labels in the coordinates of the picture, as plain data."""
    series = named_curves(curves)
    values = [value for line in series.values() for value in line if value > 0]
    low, high = curves.lengths[0], max(curves.lengths[-1], 2 * curves.lengths[0])
    x = Scale(low, high, LEFT, WIDTH - RIGHT)
    bottom, top = 2 ** floor(log2(min(values, default=1))), 2 ** ceil(log2(max(values, default=2)))
    y = Scale(bottom, max(top, 2 * bottom), HEIGHT - BOTTOM, TOP)
    lines = [
        {
            "name": name,
            "points": [(x(n), y(b)) for n, b in zip(curves.lengths, line, strict=True) if b > 0],
        }
        for name, line in series.items()
        if any(line)
    ]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "top": TOP,
        "bottom": HEIGHT - BOTTOM,
        "lines": lines,
        "labels": _labels({line["name"]: line["points"][-1][1] for line in lines}),
        "x_ticks": [{"at": x(n), "text": length_text(n)} for n in _ticks(low, high, 8)],
        "y_ticks": [
            {"at": y(n), "text": size_text(n)} for n in _ticks(bottom, max(top, 2 * bottom), 7)
        ],
    }


def named_curves(curves: MemoryCurves) -> dict[str, tuple[int, ...]]:
    """The lines by name; parts are left out where there is only one."""
    named = {} if curves.full_attention is None else {"compared": curves.full_attention}
    named["total"] = curves.total
    return named | (curves.by_kind if len(curves.by_kind) > 1 else {})


def length_text(length: int) -> str:
    """`128k`, as people say."""
    if length % 2**20 == 0:
        return f"{length // 2**20}M"
    return f"{length // 1024}k" if length % 1024 == 0 else f"{length:,}"


def _ticks(low: float, high: float, most: int) -> list[int]:
    """Powers of two, every so many of them that at most so many are left."""
    first, last = ceil(log2(low)), floor(log2(high))
    step = max(1, -(-(last - first + 1) // most))
    return [2**n for n in range(first, last + 1, step)]


def _labels(ends: dict[str, float]) -> list[dict[str, Any]]:
    """The names at the lines' ends, pushed apart where they would lie on each other."""
    labels = []
    lowest = float(TOP)
    for name, at in sorted(ends.items(), key=lambda end: end[1]):
        lowest = max(at, lowest)
        labels.append({"name": name, "text": CURVE_LABELS[name], "at": lowest, "line_at": at})
        lowest += _LABEL_HEIGHT
    return labels
