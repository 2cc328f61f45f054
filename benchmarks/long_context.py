"""How the time of a step grows with the tokens before it, and that of a prefill with its prompt.

    python benchmarks/long_context.py [--models llama bamba ...] [--repeats 3]

Prints Markdown. A step of one sequence reads what is cached of it: the first table has how much
longer it takes behind 4,096 tokens than behind 128, beside the bytes that it reads more of, at the
rate of the machine's memory. The second has the tokens a second of prompts of several lengths, and
their share of what the machine's rate of products allows. All of it is measured in turns.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from about import machine
from limits import Machine
from models import MODELS, VOCAB, make_checkpoint
from versus_tables import markdown

from hybridrt import LLM
from hybridrt.measure.floor import Floor
from hybridrt.measure.machine import Limits
from hybridrt.measure.runtime import Hybridrt
from hybridrt.measure.timing import Side, Spread, take_turns
from hybridrt.measure.work import between_tokens, to_first_token

CONTEXTS = (128, 4096)
PROMPTS = (512, 2048, 8000)
STEPS = 16
OF_STEPS = ["model", "behind 128", "behind 4,096", "more", "bytes more", "take", "more / take"]
OF_PROMPTS = ["model", *(f"{tokens:,} tokens" for tokens in PROMPTS)]


@dataclass(frozen=True)
class Measured:
    """A model's spreads by tokens, and what the machine allowed meanwhile."""

    floor: Floor
    limits: Limits
    steps: dict[int, Spread]
    prefills: dict[int, Spread]


def measure(path: Path, repeats: int) -> Measured:
    """All that is measured of a checkpoint."""
    llm = LLM(path, cache_memory="2GiB", max_model_len=8192, enable_prefix_caching=False)
    sides: dict[str, Side] = {}
    for context in CONTEXTS:  # each keeps what is computed of its context
        runtimes = {f"step {context}": Hybridrt(llm)}
        sides |= between_tokens(runtimes, VOCAB, 1, context, STEPS)
    for tokens in PROMPTS:
        sides |= to_first_token({f"prefill {tokens}": Hybridrt(llm)}, VOCAB, 1, tokens)
    here = Machine()
    spreads = take_turns(sides | here.sides, repeats)
    return Measured(
        Floor(llm.engine.model, llm.plan),
        here.limits(spreads),
        {context: spreads[f"step {context}"] for context in CONTEXTS},
        {tokens: spreads[f"prefill {tokens}"] for tokens in PROMPTS},
    )


def step_row(model: str, found: Measured) -> list[str]:
    """A row of the first table."""
    short, long = (found.steps[context].median for context in CONTEXTS)
    least, most = (found.floor.decode(1, context).num_bytes for context in CONTEXTS)
    takes = (most - least) / found.limits.bytes_per_second
    return [
        model,
        f"{1000 * short:.2f} ms",
        f"{1000 * long:.2f} ms",
        f"{1000 * (long - short):.2f} ms",
        f"{(most - least) / 1e6:.1f} MB",
        f"{1000 * takes:.2f} ms",
        f"{(long - short) / takes:.2f}",
    ]


def prompt_row(model: str, found: Measured) -> list[str]:
    """A row of the second table."""
    cells = [model]
    for tokens, spread in found.prefills.items():
        share = found.floor.prefill(1, tokens).seconds(found.limits) / spread.median
        cells.append(f"{tokens / spread.median:,.0f} tok/s, {100 * share:.0f} %")
    return cells


def main(arguments: Sequence[str]) -> None:
    """Reads the command line, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    found: dict[str, Measured] = {}
    for model in options.models:
        with tempfile.TemporaryDirectory() as directory:
            found[model] = measure(make_checkpoint(model, Path(directory)), options.repeats)
    print(f"`{shlex.join(['python', 'benchmarks/long_context.py', *arguments])}`\n")
    print(", ".join(f"{name} {value}" for name, value in machine().items()) + "\n")
    print(markdown(OF_STEPS, [step_row(*one) for one in found.items()]) + "\n")
    print(markdown(OF_PROMPTS, [prompt_row(*one) for one in found.items()]))


if __name__ == "__main__":
    main(sys.argv[1:])
