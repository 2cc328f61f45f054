"""hybridrt's planner, cache and scheduler beside vLLM's: same geometries, same traces.

    python benchmarks/versus_vllm.py --peers DIR --peers-python EXE [--traces DIR]
        [--only GEOMETRY ...] [--tests plan capacity host flat]

DIR is a harness around vLLM's own planner and scheduler (with `vllm_replay.py` and the rest
beside it), EXE the Python that has vLLM. Neither side has a model or a GPU. Tests:

    plan      padding of every group, and what one decoding request holds beyond its need
    capacity  800 requests at once in 8 GiB, no prefix caching: how many run side by side
    host      time of a step without its model, with 1 and with 256 requests at a time; the
              sides take turns, and the best run of each counts. Ours includes the building
              of a batch's indices, vLLM's does not
    flat      our time of a step, by tenths of a long run and by size of the pool

It writes versus_vllm.md and .json; rows that were not run again stay.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from about import machine
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn
from versus_tables import document
from workers import Answer, Job, Worker

HERE = Path(__file__).resolve().parent
GEOMETRIES = HERE / "geometries"
TESTS = ("plan", "capacity", "host", "flat")
COMMAND = "python benchmarks/versus_vllm.py --peers DIR --peers-python EXE"

Row = dict[str, Any]

CAPACITY = {"cache_memory": "8GiB", "max_num_seqs": 1024, "enable_prefix_caching": False}
HOST = {"cache_memory": "60GiB", "max_num_seqs": 256, "max_num_batched_tokens": 16384}
FLAT = {"cache_memory": "60GiB", "max_num_seqs": 16, "concurrency": 16}
FLAT |= {"requests": 20_000, "memories": ["8GiB", "60GiB", "480GiB"]}


def rows_of(geometry: str, test: str, traces: Path) -> Iterator[Row]:
    """What to measure, as `{"test", "geometry", ..., "job"}`."""
    row: Row = {"test": test, "geometry": geometry}
    job: Job = {"geometry": str(GEOMETRIES / f"{geometry}.json")}
    if test == "plan":
        yield row | {"job": {**job, "what": "plan", "cache_memory": "8GiB"}}
    elif test == "capacity":
        for mean in (200, 1000, 4000):
            trace = str(traces / f"lognormal-{mean}.jsonl")
            for budget in (16384, 2048):
                size = {"max_num_batched_tokens": budget, "concurrency": 1024}
                run = {**job, "what": "replay", "trace": trace, **CAPACITY, **size}
                yield row | {"mean": mean, "budget": budget, "job": run}
    elif test == "host":
        trace = str(traces / "lognormal-200.jsonl")
        for concurrency in (1, 256):
            run = {**job, "what": "replay", "trace": trace, **HOST, "concurrency": concurrency}
            yield row | {"concurrency": concurrency, "job": run}
    else:
        yield row | {"job": {**job, "what": "flat", **FLAT}}


def measure(row: Row, ours: Worker, theirs: Worker, repeats: int) -> Row:
    """The row with an answer of each side in the place of its job."""
    job = row.pop("job")
    if row["test"] == "flat":
        return row | {"hybridrt": ours.ask(job)}
    if row["test"] != "host":
        return row | {"hybridrt": ours.ask(job), "vllm": theirs.ask(job)}
    answers: dict[str, list[Answer]] = {
        side + caching: [] for caching in ("", "_no_caching") for side in ("hybridrt", "vllm")
    }
    for _ in range(repeats):
        for caching in (True, False):
            suffix, run = (
                "" if caching else "_no_caching",
                {**job, "enable_prefix_caching": caching},
            )
            answers["vllm" + suffix].append(theirs.ask(run))
            answers["hybridrt" + suffix].append(ours.ask(run))
    return row | {side: _fastest(runs) for side, runs in answers.items()}


def _fastest(runs: Sequence[Answer]) -> Answer:
    return min(runs, key=lambda run: run.get("cpu_us_per_step", float("inf")))


def make_traces(peers: Path, python: str, folder: Path) -> Path:
    """The harness's own traces."""
    script = [str(peers / "make_traces.sh"), str(folder)]
    subprocess.run(script, check=True, env={**os.environ, "PYTHON": python})
    return folder


def measure_geometry(
    name: str, args: argparse.Namespace, traces: Path, progress: Progress, task: TaskID
) -> list[Row]:
    """All rows of one geometry, with workers of their own."""
    rows: list[Row] = []
    with (
        Worker(sys.executable, str(HERE / "worker_hybridrt.py")) as ours,
        Worker(args.peers_python, str(HERE / "worker_vllm.py"), str(args.peers)) as theirs,
    ):
        for test in args.tests:
            for row in rows_of(name, test, traces):
                progress.update(task, description=f"{name}, {test}")
                rows.append(measure(row, ours, theirs, args.repeats))
                progress.advance(task)
    return rows


def run(args: argparse.Namespace, traces: Path) -> None:
    """Measures geometry by geometry, and writes after each."""
    out: Path = args.out
    rows: list[Row] = json.loads(out.read_text())["rows"] if out.exists() else []
    about = machine()
    total = len(args.only) * sum(1 for test in args.tests for _ in rows_of("", test, traces))
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)
        for name in args.only:
            new = measure_geometry(name, args, traces, progress, task)
            rows = [r for r in rows if r["geometry"] != name or r["test"] not in args.tests]
            rows += [row | {"commit": about["commit"]} for row in new]
            rows.sort(key=lambda row: (TESTS.index(row["test"]), row["geometry"]))
            write(out, rows, about, args.repeats)


def write(out: Path, rows: Sequence[Row], about: Row, repeats: int) -> None:
    """The numbers as JSON, the tables as Markdown beside them."""
    versions = {row["vllm"]["vllm"] for row in rows if "vllm" in row.get("vllm", {})}
    about = {**about, "vllm": ", ".join(sorted(versions)), "repeats": repeats}
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = f'"command": {json.dumps(COMMAND)},\n"machine": {json.dumps(about)},\n'
    out.write_text("{\n" + head + '"rows": [\n' + lines + "\n]\n}\n")
    out.with_suffix(".md").write_text(document(rows, COMMAND, about))


def arguments() -> argparse.Namespace:
    geometries = sorted(path.stem for path in GEOMETRIES.glob("*.json"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, required=True, help="the folder of the harness")
    parser.add_argument("--peers-python", required=True, help="a Python that has vLLM")
    parser.add_argument("--traces", type=Path, help="default: made by the harness")
    parser.add_argument("--only", nargs="+", default=geometries, choices=geometries)
    parser.add_argument("--tests", nargs="+", default=list(TESTS), choices=TESTS)
    parser.add_argument("--repeats", type=int, default=3, help="of the test 'host'")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "versus_vllm.json")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.peers = args.peers.resolve()
    with tempfile.TemporaryDirectory() as folder:
        made = args.traces or make_traces(args.peers, args.peers_python, Path(folder))
        run(args, made.resolve())
    print(args.out.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
