"""What the prefix cache finds and what it costs: beside the ideal, a yardstick, and vLLM.

    python benchmarks/reuse.py --peers DIR [--peers-python EXE] [--traces DIR]
        [--only GEOMETRY ...] [--tests hits pressure host filled]

DIR is a harness around vLLM's own cache and scheduler; what it measured lies in its
`vllm_results.json`, and is measured again with an EXE that has vLLM. Tests:

    hits      60 GiB, one request after the other: nothing has to be dropped
    pressure  4 and 8 GiB and more history than fits, beside `yardstick.py`
    host      time of a step with and without the prefix cache: on the same traces, one request
              after the other, and where nothing is shared, with 1 and with 256 requests at a
              time; they take turns, and of each step its least time counts
    filled    time of a step in pools that are full of 1e3 to 1e6 cached pages

It writes reuse.md and .json; rows that were not measured again stay.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from about import machine
from reuse_tables import document
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from versus_vllm import GEOMETRIES, HERE, HOST, make_traces
from workers import Answer, Job, Worker

TESTS = ("hits", "pressure", "host", "filled")
MODELS = (
    "qwen3-next-80b",
    "qwen3-next-80b-fp32state",
    "nemotron-3-nano-30b",
    "kimi-linear-48b",
    "granite-4-h-small",
    "gemma-3-27b",
    "deepseek-v3",
)
FILLED = ("qwen3-next-80b", "deepseek-v3")
TRACES = ("chat", "agent", "shared-1500-700", "shared-400-100")
UNSHARED = "lognormal-200"
COMMAND = "python benchmarks/reuse.py --peers DIR"

Row = dict[str, Any]


class Vllm:
    """vLLM's cached tokens: what was measured of it, or measures it."""

    def __init__(self, peers: Path, python: str | None) -> None:
        self._peers = peers
        self._python = python
        self._known: list[Row] = json.loads((peers / "vllm_results.json").read_text())

    def best(self, row: Row) -> Answer:
        """The better of its two settings, for a test of hits or of pressure."""
        answers = self._measure(row["job"]) if self._python else self._look_up(row)
        return max(answers, key=lambda answer: answer["cached_tokens"])

    def _look_up(self, row: Row) -> list[Answer]:
        names = ("test", "geometry", "trace", "cache_memory")
        rows = [r for r in self._known if all(r.get(name) == row[name] for name in names)]
        return [{"cached_tokens": r["cached_tokens"], "setting": r["setting"]} for r in rows]

    def _measure(self, job: Job) -> list[Answer]:
        assert self._python is not None
        command = [self._python, str(self._peers / "vllm_replay.py"), "--json"]
        for option in ("geometry", "trace", "cache_memory"):
            command += ["--" + option.replace("_", "-"), job[option]]
        answers: list[Answer] = []
        for setting, options in {"default": [], "unit16": ["--unit16"]}.items():
            output = subprocess.run([*command, *options], check=True, capture_output=True).stdout
            cached = json.loads(output.splitlines()[-1])["cached_tokens"]
            answers.append({"cached_tokens": cached, "setting": setting})
        return answers


def rows_of(geometry: str, test: str, traces: Path) -> Iterator[Row]:
    """What to measure, as `{"test", "geometry", ..., "job"}`."""
    row: Row = {"test": test, "geometry": geometry}
    job: Job = {"what": "replay", "geometry": str(GEOMETRIES / f"{geometry}.json")}
    if test in ("hits", "pressure"):
        names, memories = (
            (TRACES, ["60GiB"]) if test == "hits" else (["pressure"], ["4GiB", "8GiB"])
        )
        for name in names:
            for memory in memories:
                where = {"trace": str(traces / f"{name}.jsonl"), "cache_memory": memory}
                about = {"trace": name, "cache_memory": memory}
                yield row | about | {"job": {**job, **where, "concurrency": 1}}
    elif test == "host":
        for name, concurrency in ((UNSHARED, 1), (UNSHARED, 256), *((name, 1) for name in TRACES)):
            where = {"trace": str(traces / f"{name}.jsonl"), "concurrency": concurrency}
            about = {"trace": name, "concurrency": concurrency}
            yield row | about | {"job": {**job, **HOST, **where}}
    elif geometry in FILLED:
        for pages in (1_000, 10_000, 100_000, 1_000_000):
            yield row | {"pages": pages, "job": {**job, "what": "filled", "pages": pages}}


def measure(row: Row, ours: Worker, vllm: Vllm, repeats: int) -> Row:
    """The row with answers in the place of its job."""
    job, test = row["job"], row["test"]
    answers: Row = {}
    if test in ("hits", "pressure"):
        answers = {"hybridrt": ours.ask(job), "vllm": vllm.best(row)}
    if test == "pressure":
        answers["yardstick"] = ours.ask({**job, "what": "yardstick"})
    if test == "filled":
        answers["hybridrt"] = ours.ask({**job, "repeats": repeats})
    if test == "host":
        answers = ours.ask({**job, "what": "host", "repeats": repeats})
    return {name: value for name, value in row.items() if name != "job"} | answers


def run(args: argparse.Namespace, traces: Path) -> None:
    """Measures geometry by geometry, and writes after each."""
    out: Path = args.out
    rows: list[Row] = json.loads(out.read_text())["rows"] if out.exists() else []
    about, vllm = machine(), Vllm(args.peers, args.peers_python)
    jobs = [
        (name, [r for test in args.tests for r in rows_of(name, test, traces)])
        for name in args.only
    ]
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=sum(len(of) for _, of in jobs))
        for name, of in jobs:
            new: list[Row] = []
            with Worker(sys.executable, str(HERE / "worker_reuse.py")) as ours:
                for row in of:
                    progress.update(task, description=f"{name}, {row['test']}")
                    new.append(measure(row, ours, vllm, args.repeats))
                    progress.advance(task)
            rows = [r for r in rows if r["geometry"] != name or r["test"] not in args.tests]
            rows += [row | {"commit": about["commit"]} for row in new]
            rows.sort(key=lambda row: (TESTS.index(row["test"]), MODELS.index(row["geometry"])))
            write(out, rows, about | {"repeats": args.repeats})


def write(out: Path, rows: Sequence[Row], about: Row) -> None:
    """The numbers as JSON, the tables as Markdown beside them."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = f'"command": {json.dumps(COMMAND)},\n"machine": {json.dumps(about)},\n'
    out.write_text("{\n" + head + '"rows": [\n' + lines + "\n]\n}\n")
    out.with_suffix(".md").write_text(document(rows, COMMAND, about))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, required=True, help="the folder of the harness")
    parser.add_argument("--peers-python", help="a Python that has vLLM, to measure it again")
    parser.add_argument("--traces", type=Path, help="default: made by the harness")
    parser.add_argument("--only", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--tests", nargs="+", default=list(TESTS), choices=TESTS)
    parser.add_argument("--repeats", type=int, default=5, help="of what is timed")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "reuse.json")
    args = parser.parse_args()
    args.peers = args.peers.resolve()
    with tempfile.TemporaryDirectory() as folder:
        python = args.peers_python or sys.executable
        made = args.traces or make_traces(args.peers, python, Path(folder))
        run(args, made.resolve())
    print(args.out.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
