"""What it gains between tokens to record decode steps on a CPU (`record_decode`).

    python benchmarks/taped_decode.py [--models llama bamba ...] [--repeats 5]

Prints Markdown: for each batch milliseconds between tokens without and with it, in turns, and the
calls that a tape has.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from about import machine
from models import MODELS, VOCAB, make_checkpoint
from versus_tables import markdown

from hybridrt import LLM
from hybridrt.engine.taped_decode import TapedDecode
from hybridrt.measure.runtime import Hybridrt
from hybridrt.measure.timing import take_turns
from hybridrt.measure.work import between_tokens

CONTEXT = 128
BATCHES = (1, 8, 32, 64)
STEPS = 16
HEADER = ["model", "batch", "without", "with", "times as fast", "less", "calls"]


def measure(model: str, path: Path, repeats: int) -> Iterator[list[str]]:
    """A row of the table for each batch."""
    plain, taped = (_open(path, records) for records in (False, True))
    recorder = taped.engine._runner.static_decode
    assert isinstance(recorder, TapedDecode)
    tapes = recorder.decode_tapes
    for batch in BATCHES:
        runtimes = {"without": Hybridrt(plain), "with": Hybridrt(taped)}
        sides = between_tokens(runtimes, VOCAB, batch, CONTEXT, STEPS)
        found = {name: spread.median for name, spread in take_turns(sides, repeats).items()}
        yield [
            model,
            str(batch),
            f"{1000 * found['without']:.2f} ms",
            f"{1000 * found['with']:.2f} ms",
            f"{found['without'] / found['with']:.2f}",
            f"{1000 * (found['without'] - found['with']):.1f} ms",
            str(tapes.num_calls.get(batch, tapes.flaw)),
        ]


def _open(path: Path, records: bool) -> LLM:
    return LLM(
        path,
        record_decode=records,
        max_num_seqs=max(BATCHES),
        cache_memory="1GiB",
        max_model_len=512,
        enable_prefix_caching=False,
    )


def main(arguments: Sequence[str]) -> None:
    """Reads the command line, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    rows: list[list[str]] = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as directory:
            rows += measure(model, make_checkpoint(model, Path(directory)), options.repeats)
    print(f"`{shlex.join(['python', 'benchmarks/taped_decode.py', *arguments])}`\n")
    print(", ".join(f"{name} {value}" for name, value in machine().items()) + "\n")
    print(markdown(HEADER, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
