"""Pictures for papers, with matplotlib (the extra `viz`): memory, states, pages.

They have no titles, since a caption says that. Colours are Okabe and Ito's, and lines differ in
their dashes too. Each `*_figure` draws numbers that another function has made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridrt.cache.explain import number_in, size_text
from hybridrt.cache.plan import CachePlan
from hybridrt.report.chart import CURVE_LABELS, length_text, named_curves
from hybridrt.report.frames import Frame, page_counts
from hybridrt.report.memory import MemoryCurves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hybridrt.introspection.trace import Trace

FORMATS = ("svg", "pdf", "png")
_INCHES = (6.3, 3.1)  # the width of a page's text
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "hybridrt",
}
_LINES: dict[str, dict[str, Any]] = {
    "compared": {"color": "#555555", "linestyle": (0, (6, 3))},
    "total": {"color": "#000000", "linewidth": 2.2},
    "full": {"color": "#0072B2", "linestyle": (0, (2, 1))},
    "window": {"color": "#009E73", "linestyle": ":"},
    "state": {"color": "#D55E00", "linestyle": "-."},
}
_LAYER_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_USES = {
    "own": ("held by one sequence", "#0072B2", ""),
    "shared": ("shared by several", "#E69F00", "xxxx"),
    "cached": ("cached, held by none", "#BBBBBB", "////"),
}


@dataclass(frozen=True, slots=True)
class StateNumbers:
    """Of each layer with states: the norm (mean over heads) over positions, half-lives by head.

    `half_lives` are medians over positions, in tokens, and may be infinite.
    """

    labels: tuple[str, ...]
    positions: tuple[int, ...]
    norms: np.ndarray
    half_lives: tuple[np.ndarray, ...]


def state_numbers(trace: "Trace", plan: CachePlan) -> StateNumbers:
    """What `states_figure` draws.

    Raises:
        ValueError: no layer of the trace has a state.
    """
    layers = [i for i in trace.layers if "state_norm" in trace.statistics[i]]
    if not layers:
        raise ValueError("the trace has no layer with a state; plot memory or pages of this model")
    empty = np.empty((len(trace.positions), 0), dtype=np.float32)
    return StateNumbers(
        labels=tuple(f"{number_in(plan.layers[i].name)}  {plan.layers[i].mixer}" for i in layers),
        positions=tuple(trace.positions),
        norms=np.stack([trace.statistics[i]["state_norm"].mean(axis=1) for i in layers]),
        half_lives=tuple(
            np.median(trace.statistics[i].get("half_life", empty), axis=0) for i in layers
        ),
    )


def page_bytes(frames: Sequence[Frame]) -> dict[str, np.ndarray]:
    """Bytes of pages behind every step: held by one sequence, shared, cached."""
    groups = frames[0].map.plan.groups
    counts = [page_counts(frame.map) for frame in frames]
    return {
        use: np.array(
            [sum(c[use] * g.page_stride for c, g in zip(row, groups, strict=True)) for row in counts]
        )
        for use in _USES
    }


def memory_figure(curves: MemoryCurves) -> "Figure":
    """Bytes of a sequence against its length, both axes logarithmic."""
    figure, (axes,) = _figure(1)
    for name, line in named_curves(curves).items():
        axes.plot(curves.lengths, line, label=CURVE_LABELS[name], **_LINES[name])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda at, _: length_text(round(at)))
    axes.yaxis.set_major_formatter(lambda at, _: size_text(at))
    axes.set_xlabel("tokens of the sequence")
    axes.set_ylabel("cache of the sequence")
    axes.legend()
    return figure


def states_figure(numbers: StateNumbers) -> "Figure":
    """Left, norms over positions, a row a layer; right, the half-life of every head."""
    figure, (left, right) = _figure(2, sharey=True)
    rows = np.arange(len(numbers.labels))
    edges = [0, *numbers.positions]
    image = left.pcolormesh(edges, np.arange(len(rows) + 1) - 0.5, numbers.norms, cmap="cividis")
    figure.colorbar(image, ax=left, label="norm of the state", pad=0.02)
    left.set_yticks(rows, numbers.labels)
    left.set_ylim(len(rows) - 0.5, -0.5)
    left.set_xlabel("tokens read")
    for row, half_lives in enumerate(numbers.half_lives):
        known = half_lives[np.isfinite(half_lives)]
        colour = _LAYER_COLOURS[row % len(_LAYER_COLOURS)]
        right.plot(known, np.full(len(known), row), "|", color=colour, markersize=9)
    right.set_xscale("log")
    right.set_xlabel("half-life of a head (tokens)")
    right.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    return figure


def pages_figure(frames: Sequence[Frame]) -> "Figure":
    """What the pool holds behind every step of a run, by who holds it."""
    figure, (axes,) = _figure(1)
    sizes, steps = page_bytes(frames), np.arange(len(frames))
    below = np.zeros(len(frames))
    for use, (label, colour, hatch) in _USES.items():
        above = below + sizes[use]
        axes.fill_between(
            steps, below, above, step="post", label=label, facecolor=colour, hatch=hatch,
            edgecolor="white", linewidth=0,
        )  # fmt: skip
        below = above
    _mark_scenes(axes, frames)
    axes.set_xlim(0, len(frames) - 1)
    axes.set_ylim(0, 1.2 * max(below.max(), 1))
    axes.yaxis.set_major_formatter(lambda at, _: size_text(at))
    axes.set_xlabel("step")
    axes.set_ylabel("pages of the pool")
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def save_figure(figure: "Figure", path: Path) -> None:
    """Writes a figure in the format that the file's name ends in; the same bytes every time."""
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(check_format(path))
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        figure.savefig(path, metadata=metadata)


def check_format(path: Path) -> str:
    """The format that a file's name asks for.

    Raises:
        ValueError: it is none that is written.
    """
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise ValueError(f"out={str(path)!r} should end in one of .{', .'.join(FORMATS)}")
    return suffix


def need_matplotlib() -> None:
    """Raises ImportError, which says what to install, where there is no matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise ImportError("a plot needs matplotlib: pip install 'hybridrt[viz]'") from None
    del mpl


def _figure(count: int, **options: Any) -> "tuple[Figure, Sequence[Axes]]":
    need_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots(1, count, squeeze=False, **options)
    return figure, axes[0].tolist()


def _mark_scenes(axes: "Axes", frames: Sequence[Frame]) -> None:
    """A letter and a line where a part of the run begins; a caption can name them."""
    step = 0
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    for scene, part in groupby(frames, key=lambda frame: frame.scene):
        if scene:
            axes.axvline(step, color="#555555", linewidth=0.6, linestyle=":")
            axes.text(step, 0.97, f" {next(letters)}", transform=axes.get_xaxis_transform())
        step += len(list(part))
