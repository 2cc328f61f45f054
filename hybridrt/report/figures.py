"""Pictures for papers, with matplotlib (the extra `viz`): memory, states, pages.

They have no titles, since a caption says that. Colours are Okabe and Ito's, and lines differ in
their dashes too. Each `*_figure` draws numbers that another function has made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from jaxtyping import Float, Int

from hybridrt.cache.explain import number_in, size_text
from hybridrt.cache.plan import CachePlan
from hybridrt.report.chart import CURVE_LABELS, length_text, named_curves
from hybridrt.report.frames import Frame, page_counts
from hybridrt.report.memory import MemoryCurves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hybridrt.introspection.trace import Trace

P = ParamSpec("P")

FORMATS = ("svg", "pdf", "png")
_INCHES = (6.3, 3.1)  # the width of a page's text
_STYLE: Any = {
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
_USES = {
    "own": ("held by one sequence", "#0072B2", ""),
    "shared": ("shared by several", "#E69F00", "xxxx"),
    "cached": ("cached, held by none", "#BBBBBB", "////"),
}


def need_matplotlib() -> None:
    """Raises ImportError, which says what to install, where there is no matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise ImportError("a plot needs matplotlib: pip install 'hybridrt[viz]'") from None
    del mpl


def _styled(draw: Callable[P, "Figure"]) -> "Callable[P, Figure]":
    """The drawing in our style, whatever the user's own settings are."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> "Figure":
        need_matplotlib()
        import matplotlib as mpl

        with mpl.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return styled


@dataclass(frozen=True, slots=True)
class StateNumbers:
    """Of each layer with states: the norm (mean over heads) over positions, half-lives by head.

    `half_lives` are medians over positions, in tokens, and may be infinite.
    """

    labels: tuple[str, ...]
    positions: tuple[int, ...]
    norms: Float[np.ndarray, "layers positions"]
    half_lives: tuple[Float[np.ndarray, " heads"], ...]


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


def page_bytes(frames: Sequence[Frame]) -> dict[str, Int[np.ndarray, " frames"]]:
    """Bytes of pages behind every step, without padding: held by one sequence, shared, cached."""
    groups = frames[0].map.plan.groups
    counts = [page_counts(frame.map) for frame in frames]
    return {
        use: np.array(
            [
                sum(g.used_bytes(c[use]) for g, c in zip(groups, step, strict=True))
                for step in counts
            ]
        )
        for use in _USES
    }


@_styled
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


@_styled
def states_figure(numbers: StateNumbers) -> "Figure":
    """Left, norms over positions, a row a layer; right, the half-life of every head."""
    figure, (left, right) = _figure(2, sharey=True)
    rows = np.arange(len(numbers.labels))
    edges = [0, *numbers.positions]
    scale = "log" if numbers.norms.min() > 0 else "linear"
    image = left.pcolormesh(
        edges, np.arange(len(rows) + 1) - 0.5, numbers.norms, cmap="cividis", norm=scale
    )
    figure.colorbar(image, ax=left, label="norm of the state", pad=0.02)
    left.set_yticks(rows, numbers.labels)
    left.set_ylim(len(rows) - 0.5, -0.5)
    left.set_xlabel("tokens read")
    for row, half_lives in enumerate(numbers.half_lives):
        known = half_lives[np.isfinite(half_lives)]
        right.plot(known, np.full(len(known), row), "|", color="#0072B2", markersize=9)
    right.set_xscale("log")
    right.set_xlabel("half-life of a head (tokens)")
    right.tick_params(axis="y", length=0, labelleft=True)
    right.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    return figure


@_styled
def pages_figure(frames: Sequence[Frame]) -> "Figure":
    """What the pool holds behind every step of a run, by who holds it."""
    figure, (axes,) = _figure(1)
    sizes, steps = page_bytes(frames), np.arange(len(frames))
    unit, unit_bytes = _unit(np.sum([*sizes.values()], axis=0).max())
    below = np.zeros(len(frames))
    for use, (label, colour, hatch) in _USES.items():
        above = below + sizes[use] / unit_bytes
        axes.fill_between(
            steps, below, above, step="post", label=label, facecolor=colour, hatch=hatch,
            edgecolor="white", linewidth=0,
        )  # fmt: skip
        below = above
    _mark_scenes(axes, frames)
    axes.set_xlim(0, len(frames) - 1)
    axes.set_ylim(0, 1.15 * max(below.max(), 1e-9))
    axes.set_xlabel("step")
    axes.set_ylabel(f"pages of the pool ({unit})")
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
        raise ValueError(f"--out={str(path)!r} should end in one of .{', .'.join(FORMATS)}")
    return suffix


def _figure(count: int, **options: Any) -> "tuple[Figure, Sequence[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False, **options)[0].tolist()


def _unit(num_bytes: float) -> tuple[str, int]:
    """The unit in which so many bytes are a number of a few digits."""
    units = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "bytes": 1}
    return next((name, size) for name, size in units.items() if num_bytes >= size or size == 1)


def _mark_scenes(axes: "Axes", frames: Sequence[Frame]) -> None:
    """A letter and a line where a part of the run begins; a caption can name them."""
    step = 0
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    for scene, part in groupby(frames, key=lambda frame: frame.scene):
        if scene:
            axes.axvline(step, color="#555555", linewidth=0.6, linestyle=":")
            axes.text(step, 0.97, f" {next(letters)}", transform=axes.get_xaxis_transform())
        step += len(list(part))
