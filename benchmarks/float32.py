"""What packing weights of float32 gains: one model packed and as it is loaded, in turns.

    python benchmarks/float32.py [--models llama bamba deepseek_v2] [--repeats 7]

Prints Markdown: milliseconds to the first token of a prompt and between tokens, and the ratio.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

from about import machine
from models import MODELS, VOCAB, make_checkpoint
from versus_tables import markdown

from hybridrt import LLM
from hybridrt.measure.runtime import Hybridrt
from hybridrt.measure.timing import take_turns
from hybridrt.measure.work import between_tokens, to_first_token

PROMPTS, BATCHES = (128, 1024), (1, 8)
CONTEXT, STEPS = 128, 8


def measure(model: str, path: Path, repeats: int) -> Iterator[list[str]]:
    """A row of the table for each thing measured."""
    with patch("hybridrt.kernels.linear.FEWEST_SINGLES", sys.maxsize):
        runtimes = {"as loaded": _open(path)}
    runtimes["packed"] = _open(path)
    sides = {f"first token of {n:,}": to_first_token(runtimes, VOCAB, 1, n) for n in PROMPTS}
    for batch in BATCHES:
        name = f"between tokens, batch {batch}"
        sides[name] = between_tokens(runtimes, VOCAB, batch, CONTEXT, STEPS)
    for name, both in sides.items():
        found = {side: spread.median for side, spread in take_turns(both, repeats).items()}
        times = [f"{1000 * seconds:,.1f}" for seconds in found.values()]
        yield [model, name, *times, f"{found['as loaded'] / found['packed']:.2f}"]


def _open(path: Path) -> Hybridrt:
    options = {"max_model_len": 2048, "enable_prefix_caching": False}
    return Hybridrt(LLM(path, dtype="float32", cache_memory="1GiB", **options))


def main(arguments: Sequence[str]) -> None:
    """Reads the command line, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = ["llama", "bamba", "deepseek_v2"]
    parser.add_argument("--models", nargs="+", default=known, choices=list(MODELS))
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as directory:
        for model in options.models:
            rows += measure(model, make_checkpoint(model, Path(directory)), options.repeats)
    print(f"`{shlex.join(['python', 'benchmarks/float32.py', *arguments])}`\n")
    print(", ".join(f"{name} {value}" for name, value in machine().items()) + "\n")
    heads = ["model", "what", "as loaded, ms", "packed, ms", "times as fast"]
    print(markdown(heads, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
