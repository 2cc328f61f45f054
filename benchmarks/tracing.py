"""What recording costs: a prompt that a session computes, beside one that it traces, in turns.

    python benchmarks/tracing.py [--models demo bamba jamba llama] [--turns 9] [--every 256]

The models are the demo in float32, and those of models.py in bfloat16, with prompts of 2,048 tokens
that are new each time. A session computes its prompt, and others trace theirs: with no statistics,
with those that are the default, with all, and with the default ones and states to files. Times are
the least of all turns, of the processor's time of the whole process, so that what else runs on the
machine counts as little as it can. It writes tracing.md and .json.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import torch
from about import machine
from models import MODELS, VOCAB, make_checkpoint
from versus_tables import markdown

from hybridrt import LLM, Session
from hybridrt.measure.timing import collector_off

HERE = Path(__file__).resolve().parent
PROMPT = 2048
MOST = 0.10  # of a prefill's time, for the default statistics
SIDES = ("computed", "no statistics", "default", "default, states to files", "all")

Row = dict[str, Any]


def measure(model: str, llm: LLM, turns: int, every: int, folder: Path) -> Row:
    """Seconds of each side: the least of all turns, behind one to warm up."""
    random, vocab = Random(0), min(VOCAB, llm.engine.model.config.vocab_size)
    length = min(PROMPT, llm.engine.max_model_len - 1)
    paths = iter(folder / f"{model}-{i}" for i in range(10**6))

    def compute(session: Session, tokens: list[int]) -> None:
        session.append(tokens)
        _ = session.logits

    def trace(**options: Any) -> Callable[[Session, list[int]], None]:
        return lambda session, tokens: session.trace(tokens, every=every, **options) and None

    def to_files(session: Session, tokens: list[int]) -> None:
        session.trace(tokens, every=every, path=next(paths))

    runs = (compute, trace(statistics=[]), trace(), to_files, trace(statistics="all"))
    sides = dict(zip(SIDES, runs, strict=True))
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns + 1):
        for name, run in sides.items():
            tokens = [random.randrange(3, vocab) for _ in range(length)]
            with llm.session() as session, collector_off():
                start = time.process_time()
                run(session, tokens)
                samples[name].append(time.process_time() - start)
    return {"model": model, "tokens": length} | {
        name: min(found[1:]) for name, found in samples.items()
    }


def open_model(model: str, folder: Path) -> LLM:
    """The demo as it is, or a checkpoint with random weights."""
    if model == "demo":
        return LLM("demo", device="cpu", cache_memory="256MiB", max_num_batched_tokens=PROMPT)
    path = make_checkpoint(model, folder)
    options: dict[str, Any] = {"max_model_len": PROMPT + 1, "max_num_batched_tokens": PROMPT}
    return LLM(str(path), dtype="bfloat16", device="cpu", cache_memory="1GiB", **options)


def document(rows: list[Row], command: str, every: int, about: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    text = f"Prompts are recorded every {every} tokens. Aim: at most {MOST:.0%} more than computing"
    text += " them, with the default statistics. `all` has the effective rank beside them."
    cells = [
        [row["model"], f"{row['tokens']:,}", f"{1000 * row['computed']:.0f} ms"]
        + [f"{row[side] / row['computed'] - 1:+.1%}" for side in SIDES[1:]]
        for row in rows
    ]
    table = markdown(["model", "tokens", *SIDES], cells)
    machine_line = ", ".join(f"{name} {value}" for name, value in about.items())
    return "\n\n".join([f"`{command}`", machine_line, text, table]) + "\n"


def main(arguments: list[str]) -> None:
    """Reads the command line, measures, and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices = ["demo", *MODELS]
    models = ["demo", "bamba", "jamba", "llama"]
    parser.add_argument("--models", nargs="+", default=models, choices=choices)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--every", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "tracing.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    rows: list[Row] = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            llm = open_model(model, Path(folder))
            rows.append(measure(model, llm, options.turns, options.every, Path(folder)))
        print(rows[-1], flush=True)
    command, about = shlex.join(["python", "benchmarks/tracing.py", *arguments]), machine()
    options.out.write_text(document(rows, command, options.every, about))
    data = {"command": command, "machine": about, "every": options.every, "rows": rows}
    options.out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    print(options.out.read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
