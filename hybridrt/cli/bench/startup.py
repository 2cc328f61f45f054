"""`hybridrt bench startup`: from nothing to the first token, in fresh processes."""

import json
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from hybridrt.cli.bench.settings import MeasureOptions, at_least
from hybridrt.cli.bench.tables import Row, heading, notes, print_rows
from hybridrt.cli.models import busy, engine_config
from hybridrt.cli.options import EngineOptions, Json, Model
from hybridrt.cli.output import print_json

STAGES = ("import", "load", "first token", "in all")


def startup(
    model: Model,
    engine: EngineOptions,
    measure: MeasureOptions,
    prompt_tokens: Annotated[int, typer.Option(help="Random tokens in the prompt.")] = 16,
    json_output: Json = False,
) -> None:
    """Measure importing, loading and the first token, each time in a new process.

    It does what `hybridrt generate` does. Processes before the measured ones compile kernels,
    if they are not yet on disk, and bring files into memory. The floors: importing torch
    alone, reading the checkpoint's files, and reading the weights in use.
    """
    measure.check()
    at_least(1, prompt_tokens=prompt_tokens)
    engine_config(model, engine)
    job = {"model": model, "engine": asdict(engine), "tokens": prompt_tokens, "seed": measure.seed}
    with busy("a first process"):
        model_is = _child("about", job)
    job |= model_is
    sides = ["hybridrt"] if measure.against is None else ["hybridrt", measure.against]
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in [*sides, "torch"]}
    for number in range(measure.repeats + 1):
        with busy(f"run {number + 1} of {measure.repeats + 1}"):
            for side, found in runs.items():
                found.append(_stages(side, job))
    rows = _rows({side: found[1:] for side, found in runs.items()}, model_is)
    data = _data(model, measure, model_is) | {"prompt_tokens": prompt_tokens}
    if json_output:
        print_json(data | {"rows": [row.data() for row in rows]})
    else:
        print_rows("From the start of a process", rows, heading(data), notes(data))


def _stages(side: str, job: dict[str, Any]) -> dict[str, float]:
    """Seconds of each stage of one process."""
    started = time.time()
    ends = _child(side, job)
    starts = [started, *ends.values()][:-1]
    seconds = {name: ends[name] - start for name, start in zip(ends, starts, strict=True)}
    return seconds | {"in all": max(ends.values()) - started}


def _child(side: str, job: dict[str, Any]) -> dict[str, Any]:
    """What a process of that side answers.

    Raises:
        ValueError: it failed; the message is its own.
    """
    command = [sys.executable, "-m", "hybridrt.cli.bench.fresh_process", side, json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr.strip().removeprefix("error: ") or f"{side}: ended at once")
    return json.loads(done.stdout.splitlines()[-1])


def _rows(runs: dict[str, list[dict[str, float]]], model_is: dict[str, Any]) -> list[Row]:
    """A row for each stage."""
    import torch

    from hybridrt.measure import machine
    from hybridrt.measure.floor import Work
    from hybridrt.measure.timing import Spread

    limits = machine.measure_limits(
        torch.device(model_is["device"]), getattr(torch, model_is["dtype"])
    )
    least = {
        "import": Spread.of([run["import"] for run in runs.pop("torch")], 1).median,
        "load": model_is["seconds_to_read"],
        "first token": Work(**model_is["work"]).seconds(limits),
    }
    least["in all"] = sum(least.values())
    rows: list[Row] = []
    for stage in STAGES:
        spreads = {
            side: Spread.of([run[stage] for run in found], len(found))
            for side, found in runs.items()
        }
        rows.append(Row({"stage": stage}, 0, spreads, least[stage]))
    return rows


def _data(model: str, measure: MeasureOptions, model_is: dict[str, Any]) -> dict[str, Any]:
    from hybridrt.measure.machine import describe

    kinds = {name: model_is[name] for name in ("device", "dtype")}
    return {"model": model, "machine": describe(), **kinds, "repeats": measure.repeats}
