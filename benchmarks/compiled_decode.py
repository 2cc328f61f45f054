"""What `compile=True` gains between tokens, and what it costs before the first of them.

    OMP_NUM_THREADS=1 python benchmarks/compiled_decode.py [--models llama bamba] [--repeats 5]

Prints Markdown: for each batch milliseconds between tokens without and with it, in turns, the time
that the first step of that size takes longer, with torch's cache of compiled code empty and filled,
and the steps after which the gain has paid for that. Beside `compile=True`, weights are not packed
for oneDNN, and norms, rotations and gates are the compiler's code instead of numba's.
"""

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path

import torch
from about import machine
from models import MODELS, VOCAB, make_checkpoint
from versus_tables import markdown

from hybridrt import LLM
from hybridrt.measure.runtime import Hybridrt
from hybridrt.measure.timing import take_turns
from hybridrt.measure.work import between_tokens

CONTEXT = 128
BATCHES = (1, 4, 8)
STEPS = 12
HEADER = ["model", "batch", "plain", "compiled", "first step", "from torch's cache", "pays after"]


def measure(model: str, path: Path, repeats: int) -> Iterator[list[str]]:
    """A row of the table for each batch."""
    runtimes = {"plain": _open(path, False), "compiled": _open(path, True)}
    for batch in BATCHES:
        new = {name: _first_step(runtime, batch) for name, runtime in runtimes.items()}
        sides = between_tokens(runtimes, VOCAB, batch, CONTEXT, STEPS)
        found = {name: spread.median for name, spread in take_turns(sides, repeats).items()}
        torch.compiler.reset()  # as in a new process, which finds the code on disk
        cached = _first_step(runtimes["compiled"], batch)
        plain, fast = found["plain"], found["compiled"]
        paid = (new["compiled"] - new["plain"]) / (plain - fast) if fast < plain else inf
        yield [
            model,
            str(batch),
            f"{1000 * plain:.1f} ms",
            f"{1000 * fast:.1f} ms ({plain / fast:.2f} times as fast)",
            f"{new['compiled'] - new['plain']:.1f} s",
            f"{cached - new['plain']:.1f} s",
            "never" if paid == inf else f"{paid:,.0f} steps",
        ]


def _open(path: Path, compiles: bool) -> Hybridrt:
    return Hybridrt(
        LLM(
            path,
            compile=compiles,
            max_num_seqs=max(BATCHES),
            cache_memory="512MiB",
            max_model_len=512,
            enable_prefix_caching=False,
        )
    )


def _first_step(runtime: Hybridrt, batch: int) -> float:
    """Seconds of the first step of that size, which is compiled in it."""
    ((seconds, *_),) = (
        run() for run in between_tokens({"": runtime}, VOCAB, batch, CONTEXT, 1).values()
    )
    return seconds


def main(arguments: Sequence[str]) -> None:
    """Reads the command line, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["llama", "bamba"], choices=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(directory, "torch"))
        for model in options.models:
            path = make_checkpoint(model, Path(directory))
            rows += measure(model, path, options.repeats)
    print(f"`{shlex.join(['python', 'benchmarks/compiled_decode.py', *arguments])}`\n")
    print(", ".join(f"{name} {value}" for name, value in machine().items()) + "\n")
    print(markdown(HEADER, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
