"""What weights of 8 and 4 bits gain: steps of one model beside its bfloat16 self, in turns.

    python benchmarks/quantisation.py [--models llama bamba deepseek_v2 qwen3_next] [--repeats 7]
        [--steps 12]

Prints Markdown: milliseconds between tokens at several batches, and to the first token of a prompt,
with the ratio to bfloat16. The first of a turn's steps find the others' weights in a processor's
last cache; of many steps the median shows what one model by itself takes. Errors of the demo's
answers are measured by training/evaluate.py: `--dtype bfloat16 --quantization none int8 int4`.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from about import machine
from models import MODELS, VOCAB, make_checkpoint
from versus_tables import markdown

from hybridrt import LLM
from hybridrt.measure.floor import Floor
from hybridrt.measure.machine import Limits, measure_limits
from hybridrt.measure.runtime import Hybridrt
from hybridrt.measure.timing import take_turns
from hybridrt.measure.work import between_tokens, to_first_token

KINDS = (None, "int8", "int4")
PROMPT = CONTEXT = 128
BATCHES = (1, 4, 8)


def measure(
    model: str, path: Path, repeats: int, steps: int, limits: Limits
) -> Iterator[list[str]]:
    """A row of the table for each thing measured."""
    runtimes = {str(kind): _open(path, kind) for kind in KINDS}
    for batch in BATCHES:
        sides = between_tokens(runtimes, VOCAB, batch, CONTEXT, steps)
        found = {name: spread.median for name, spread in take_turns(sides, repeats).items()}
        floors = {
            name: Floor(runtime.llm.engine.model, runtime.llm.plan)
            .decode(batch, CONTEXT)
            .seconds(limits)
            for name, runtime in runtimes.items()
        }
        yield [model, f"between tokens, batch {batch}", *_cells(found, floors)]
    sides = to_first_token(runtimes, VOCAB, 1, PROMPT)
    found = {name: spread.median for name, spread in take_turns(sides, repeats).items()}
    yield [model, f"first token of {PROMPT}", *_cells(found, {})]


def _open(path: Path, kind: str | None) -> Hybridrt:
    return Hybridrt(
        LLM(
            path,
            quantization=kind,
            cache_memory="512MiB",
            max_model_len=512,
            enable_prefix_caching=False,
        )
    )


def _cells(seconds: dict[str, float], floors: dict[str, float]) -> list[str]:
    plain = seconds["None"]
    cells: list[str] = []
    for name, found in seconds.items():
        over = f", {found / floors[name]:.2f} of the floor" if name in floors else ""
        faster = "" if name == "None" else f" ({plain / found:.2f} times as fast{over})"
        cells.append(f"{1000 * found:.1f} ms{faster or over}")
    return cells


def main(arguments: Sequence[str]) -> None:
    """Reads the command line, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = ["llama", "bamba", "deepseek_v2", "qwen3_next"]
    parser.add_argument("--models", nargs="+", default=known, choices=list(MODELS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args(arguments)
    limits = measure_limits(torch.device("cpu"), torch.bfloat16)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as directory:
        for model in options.models:
            path = make_checkpoint(model, Path(directory))
            rows += measure(model, path, options.repeats, options.steps, limits)
    print(f"`{shlex.join(['python', 'benchmarks/quantisation.py', *arguments])}`\n")
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    print(f"\nReads {limits.bytes_per_second / 1e9:.1f} GB/s.\n")
    print(markdown(["model", "what", "bfloat16", "int8", "int4"], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
