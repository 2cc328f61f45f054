"""What it gains to record decode steps and prompts on a CPU (`record_decode`).

    python benchmarks/taped_decode.py [--models llama bamba ...] [--repeats 5]

Prints Markdown: for each batch milliseconds between tokens, and for prompts of some lengths, each
of other tokens, milliseconds to the first token, without and with it, in turns; and the calls that
a tape has.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from about import machine
from models import MODELS, VOCAB, make_checkpoint
from versus_tables import markdown

from hybridrt import LLM
from hybridrt.engine.taped_decode import TapedDecode
from hybridrt.measure.runtime import Hybridrt
from hybridrt.measure.timing import Spread, take_turns
from hybridrt.measure.work import between_tokens, to_first_token

CONTEXT = 128
BATCHES = (1, 8, 32, 64)
STEPS = 16
PROMPTS = (32, 128, 256, 512)
HEADER = ["model", "what", "without", "with", "times as fast", "less", "calls"]


def measure(model: str, path: Path, repeats: int) -> Iterator[list[str]]:
    """A row of the table for each batch of decodes, and for each length of a prompt."""
    plain, taped = (_open(path, records) for records in (False, True))
    runtimes = {"without": Hybridrt(plain), "with": Hybridrt(taped)}
    recorder = taped.engine._runner.static_decode
    assert isinstance(recorder, TapedDecode)
    tapes = recorder.decode_tapes
    for batch in BATCHES:
        sides = between_tokens(runtimes, VOCAB, batch, CONTEXT, STEPS)
        found = take_turns(sides, repeats)
        yield _row(model, f"steps of {batch}", found, tapes.num_calls.get(batch, tapes.flaw))
    new = recorder.prompt_tapes[True]
    for tokens in PROMPTS:
        found = take_turns(to_first_token(runtimes, VOCAB, 1, tokens), 4 * repeats)
        calls = [n for shape, n in new.num_calls.items() if shape.tokens == tokens]
        yield _row(model, f"a prompt of {tokens}", found, calls[0] if calls else new.flaw)


def _row(model: str, what: str, found: Mapping[str, Spread], calls: int | str | None) -> list[str]:
    without, taped = found["without"].median, found["with"].median
    return [
        model,
        what,
        f"{1000 * without:.2f} ms",
        f"{1000 * taped:.2f} ms",
        f"{without / taped:.2f}",
        f"{1000 * (without - taped):.1f} ms",
        str(calls),
    ]


def _open(path: Path, records: bool) -> LLM:
    return LLM(
        path,
        record_decode=records,
        max_num_seqs=max(BATCHES),
        cache_memory="1GiB",
        max_model_len=1024,
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
