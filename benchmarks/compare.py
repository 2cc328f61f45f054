"""hybridrt beside transformers, vLLM and llama.cpp: same weights, prompts and threads, in turns.

    python benchmarks/compare.py [--models llama jamba ...] [--what prefill decode]
        [--tokens 128 512 2048 4096] [--batches 1 8 32] [--vllm EXE]
        [--llama-cpp EXE] [--out FILE.md]

Of models with random weights in bfloat16, made by transformers (`models.py`):

    prefill  tokens a second of prompts of 128, 512 and 2,048 tokens, to the first token of all
    decode   milliseconds a step behind 128 and 4,096 tokens of context

beside the floor: what the machine allows, by the bytes that must be read and the operations of
products, at a bandwidth and a rate that are measured in turns with the sides, since a machine's
memory may be twice as fast a minute later. Every runtime is a process
of its own with as many threads; runs take turns, with a rest before each, the first of each is to
warm up, and medians count. A side that takes longer than `--patience` seconds for one run runs
once. Each EXE is the Python of an environment that has vLLM for CPUs, or llama-cpp-python.
llama.cpp reads the weights from a GGUF file, so it is measured only if its logits are the model's.

`--out` takes the rows into the table (.md) and the numbers (.json) that are there; rows that were
not measured again stay, so that parts can be run one after the other.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from about import machine
from compare_tables import document, table
from limits import Machine
from models import MODELS, VOCAB, make_checkpoint
from sides import Remote, SideFailedError, start

from hybridrt.measure.floor import Work
from hybridrt.measure.machine import Limits
from hybridrt.measure.timing import Side, Spread, take_turns
from hybridrt.measure.work import between_tokens, to_first_token

TOKENS = {"prefill": (128, 512, 2048), "decode": (128, 4096)}
BATCHES = (1, 8, 32)
STEPS = 16
REST = 0.3
"""Seconds before each run, in which threads of the process before it stop waiting for more work in
a loop: 0.2 s by default of Intel's OpenMP. Meanwhile they would take time from the next side."""

AGREEING = 100  # tokens behind which logits are compared
COMMAND = "python benchmarks/compare.py --vllm EXE --llama-cpp EXE --out benchmarks/results/{file}"

Row = dict[str, Any]


def measure_model(model: str, args: argparse.Namespace) -> list[Row]:
    """All rows of one model, with processes of their own."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        checkpoint = make_checkpoint(model, Path(folder))
        started = start(stack, checkpoint, args.peers, args.vllm, args.llama_cpp, args.threads)
        versions = {name: _version(side) for name, side in started.items()}
        refused = {name: {"error": error} for name, (_, error) in versions.items() if error}
        if "llama.cpp" in started.keys() - refused.keys():
            refused |= disagreement(started["hybridrt"], started["llama.cpp"])
        sides = {name: side for name, side in started.items() if name not in refused}
        about = {"versions": {name: version for name, (version, _) in versions.items()}}
        for row in asked_rows(model, args):
            began = time.perf_counter()
            found: Row = {**measure_row(row, sides, args), **refused, **about}
            work = Work(**sides["hybridrt"].work(row["what"], row["batch"], row["tokens"]))
            took = {"took": round(time.perf_counter() - began, 1)}
            limits = Limits(found["bytes_per_second"], found["operations_per_second"])
            rows.append(row | found | took | {"floor": work.seconds(limits)})
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def asked_rows(model: str, args: argparse.Namespace) -> Iterator[Row]:
    """The keys of what is to be measured of a model."""
    for what in args.what:
        for tokens in (tokens for tokens in TOKENS[what] if tokens in args.tokens):
            for batch in args.batches:
                yield {"model": model, "what": what, "tokens": tokens, "batch": batch}


def _version(side: Remote) -> tuple[str | None, str | None]:
    """A side's version, or why it doesn't start."""
    try:
        return side.about(), None
    except SideFailedError as error:
        return None, str(error)


def disagreement(ours: Remote, theirs: Remote) -> Row:
    """Why a side is left out whose logits aren't those of the model.

    They may be twice as far from ours in float32 as ours are in the model's dtype. What is
    compared is the logits less their mean, by the RMS.
    """
    random = Random(0)
    context = [random.randrange(VOCAB) for _ in range(AGREEING)]
    last = [random.randrange(VOCAB) for _ in range(3)]
    try:
        found = [ours.logits(context, last, exact=True)]
        found += [side.logits(context, last) for side in (ours, theirs)]
    except SideFailedError as error:
        return {error.side: {"error": str(error)}}
    exact, here, there = (_centred(torch.tensor(logits)) for logits in found)
    errors = [((part - exact).norm() / exact.norm()).item() for part in (here, there)]
    said = "{:.2%} off, ours {:.2%}".format(*reversed(errors))
    print(f"logits of llama.cpp: {said}", file=sys.stderr)
    return {"llama.cpp": {"error": f"its logits are {said}"}} if errors[1] > 2 * errors[0] else {}


def _centred(logits: torch.Tensor) -> torch.Tensor:
    return logits - logits.mean(-1, keepdim=True)


def measure_row(row: Row, sides: dict[str, Remote], args: argparse.Namespace) -> Row:
    """Each side's spread; of one that fails, why. And what the machine allowed meanwhile."""
    found: Row = {}
    here = Machine()
    working: dict[str, Any] = dict(sides)
    while True:
        for side in sides.values():
            side.note = None
        runs = (
            to_first_token(working, VOCAB, row["batch"], row["tokens"])
            if row["what"] == "prefill"
            else between_tokens(working, VOCAB, row["batch"], row["tokens"], STEPS)
        )
        try:
            rested = {name: partial(_rested, run) for name, run in (runs | here.sides).items()}
            spreads = take_turns(rested, args.repeats, args.patience)
        except SideFailedError as error:
            found[error.side] = {"error": str(error)}
            del working[error.side]
            continue
        found |= asdict(here.limits(spreads))
        return found | {n: _with_note(spread, sides[n].note) for n, spread in spreads.items()}


def _rested(run: Side) -> Sequence[float]:
    time.sleep(REST)
    return run()


def _with_note(spread: Spread, note: str | None) -> Row:
    return asdict(spread) | ({"note": note} if note else {})


def run(args: argparse.Namespace) -> None:
    """Measures model by model, and writes after each."""
    torch.set_num_threads(args.threads)
    numbers = args.out and args.out.with_suffix(".json")
    rows: list[Row] = []
    if numbers and numbers.exists():
        rows = json.loads(numbers.read_text())["rows"]
    about = machine()
    command = COMMAND.format(file=args.out.name if args.out else "compare.md")
    for model in args.models:
        new = [row | {"commit": about["commit"]} for row in measure_model(model, args)]
        rows = merge(rows, new)
        if numbers:
            lines = ",\n".join(json.dumps(row) for row in rows)
            head = f'"command": {json.dumps(command)},\n"machine": {json.dumps(about)},\n'
            numbers.write_text("{\n" + head + '"rows": [\n' + lines + "\n]\n}\n")
            args.out.write_text(document(rows, command, about))
    print(document(rows, command, about))


def merge(rows: list[Row], new: list[Row]) -> list[Row]:
    """The rows with new ones in the places of those that they measure again."""

    def key(row: Row) -> tuple[Any, ...]:
        order = list(MODELS).index(row["model"]), list(TOKENS).index(row["what"])
        return *order, row["tokens"], row["batch"]

    merged = {key(row): row for row in [*rows, *new]}
    return [merged[each] for each in sorted(merged)]


def show(args: argparse.Namespace) -> None:
    """The table of those rows in a file of numbers that were asked for."""
    rows = json.loads(args.out.with_suffix(".json").read_text())["rows"]
    keys = [row for model in args.models for row in asked_rows(model, args)]
    print(table([row for row in rows if any(key.items() <= row.items() for key in keys)]))


def main() -> None:
    lengths = sorted({length for lengths in TOKENS.values() for length in lengths})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--what", nargs="+", default=list(TOKENS), choices=list(TOKENS))
    parser.add_argument("--tokens", nargs="+", type=int, default=lengths, choices=lengths)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), choices=BATCHES)
    parser.add_argument("--peers", nargs="*", default=["transformers"], choices=["transformers"])
    parser.add_argument("--vllm", metavar="EXE", help="a Python that has vLLM for CPUs")
    parser.add_argument("--llama-cpp", metavar="EXE", help="a Python that has llama-cpp-python")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--patience", type=float, default=20, help="seconds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true", help="only print what --out has of these")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    show(args) if args.show else run(args)


if __name__ == "__main__":
    main()
