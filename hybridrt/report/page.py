"""The page: everything in one file that opens offline and asks no network for anything."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader

from hybridrt.cache.explain import fits, size_text
from hybridrt.cache.plan import CachePlan
from hybridrt.report.chart import CURVE_LABELS, length_text, memory_chart, named_curves
from hybridrt.report.frames import Frame, pack_frames
from hybridrt.report.heat import ATTENTION, HALF_LIFE, STATES, names_of, pack_trace
from hybridrt.report.memory import memory_curves
from hybridrt.report.stack import LETTERS, Part, stack_lengths, stack_rows

if TYPE_CHECKING:
    from hybridrt.introspection.trace import Trace

MOST_CHARACTERS = 20_000
"""Of the prompt that are shown."""
_SCRIPTS = ("common", "theme", "stack", "memory", "map", "heat_data", "heat")
_KIND_TEXTS = {
    "full": "full: attention or MLA over all tokens",
    "window": "window: attention over the last tokens",
    "state": "state: one for the whole sequence",
}


def report_page(
    model: str,
    plan: CachePlan,
    facts: Mapping[str, str],
    *,
    parts: Sequence[Part] = (),
    longest: int | None = None,
    hidden_bytes: int | None = None,
    prompt: str | None = None,
    frames: Sequence[Frame] = (),
    trace: "Trace | None" = None,
) -> str:
    """The page as HTML.

    Args:
        model: what it is called in the title.
        plan: the cache that the stack and the memory are drawn from.
        facts: more lines of the header, name and value.
        parts: the model's parts; without them the stack has the caching layers only.
        longest: tokens of the longest sequence.
        hidden_bytes: bytes of a hidden vector, for a model that has no attention.
        prompt: the text that `frames` and `trace` come from, to be shown.
        frames: the pool over time (`hybridrt.report.recording`).
        trace: statistics of the layers over a text (`session.trace`).
    """
    curves = memory_curves(plan, longest, hidden_bytes)
    heat = None if trace is None else pack_trace(trace, plan)
    script = _script()
    data = {
        "stack": {"rows": stack_rows(plan, parts), "lengths": stack_lengths(longest)},
        "memory": {
            "lengths": curves.lengths,
            "curves": named_curves(curves),
            "labels": CURVE_LABELS,
        },
        "map": pack_frames(frames) if frames else None,
        "heat": heat,
    }
    return (
        _environment()
        .get_template("page.html")
        .render(
            model=model,
            plan=plan,
            facts=facts,
            prompt=prompt,
            most_characters=MOST_CHARACTERS,
            lengths=[*enumerate(data["stack"]["lengths"])],
            fits=fits(plan, data["stack"]["lengths"]),
            kinds=[(k, LETTERS[k], _KIND_TEXTS[k]) for k in LETTERS if _has(plan, k)],
            curves=curves,
            chart=memory_chart(curves),
            heats=_heats(heat),
            data=data,
            style=_file("style.css"),
            dark=_file("dark.css"),
            print=_file("print.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def _heats(packed: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The figures of heat maps that a trace has something for."""
    if packed is None:
        return []
    figures = [
        ("states", "States", "States over positions", STATES),
        ("half-life", "Half-lives", "How long a head remembers", HALF_LIFE),
        ("attention", "Attention", "Attention on earlier tokens", ATTENTION),
    ]
    named = [(key, link, title, names_of(of, packed)) for key, link, title, of in figures]
    return [
        {"id": key, "link": link, "title": title, "statistics": names}
        for key, link, title, names in named
        if names
    ]


def _has(plan: CachePlan, kind: str) -> bool:
    return any(layer.kind == kind for layer in plan.layers)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("hybridrt.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": size_text,
        "length": length_text,
        "comma": lambda number: f"{number:,}",
    }
    return environment


@cache
def _script() -> str:
    """All scripts in one scope, so that the page's only global names are the browser's."""
    body = "\n".join(_file(f"{name}.js") for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}}})();\n'


def _file(name: str) -> str:
    """A file of ours, which goes into the page as it is."""
    path = files("hybridrt.report") / "templates" / name
    return path.read_text(encoding="utf-8")
