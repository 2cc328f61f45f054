"""Measures a demo checkpoint: exact answers by kind and distance, and what each cache is for.

python -m training.evaluate hybridrt/demo --prompts 1000
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.torch import load_file

from hybridrt.demo.facts import KINDS, MAX_DISTANCE, Recall, recall_prompt
from training.batches import encode
from training.demo_model import LAYER_TYPES
from training.dense import DenseStack

BAND = 100
Result = tuple[Recall, bool]


def fresh_prompts(count: int, seed: int) -> list[Recall]:
    """Prompts that depend on `seed` only, and that no training text was made from."""
    rng = random.Random(f"fresh/{seed}")
    return [recall_prompt(rng) for _ in range(count)]


@torch.no_grad()
def exact_match(model: DenseStack, prompts: Iterable[Recall], forgets: str = "") -> list[Result]:
    """Each prompt, and whether the whole greedy answer to it is right.

    An answer is right if every one of its tokens is the argmax after the right
    ones before it, which is what greedy decoding would give.

    Args:
        model: the model, in float32.
        prompts: what to ask.
        forgets: a type of layers that are to remember nothing, if any.
    """
    memory = torch.tensor([[float(kind != forgets)] for kind in LAYER_TYPES])
    results = []
    for recall in prompts:
        ids = torch.from_numpy(encode(recall.prompt + recall.answer))[None]
        answer = len(recall.answer)
        guess = model(ids[:, :-1], memory if forgets else None)[0, -answer:].argmax(-1)
        results.append((recall, bool((guess == ids[0, -answer:]).all())))
    return results


def load(directory: Path) -> DenseStack:
    """The dense twin with the weights of a checkpoint directory."""
    model = DenseStack(json.loads((directory / "config.json").read_text()))
    model.load_state_dict(load_file(directory / "model.safetensors"))
    return model


def by_distance(results: list[Result]) -> Table:
    """Exact answers per kind and band of distances."""
    bands = range(0, MAX_DISTANCE, BAND)
    table = Table("asks", *(f"{low + 1}-{low + BAND} back" for low in bands), "all")
    for kind in (*KINDS, "all"):
        mine = [(recall, ok) for recall, ok in results if kind in (recall.kind, "all")]
        cells = [
            _share([ok for recall, ok in mine if low < recall.distance <= low + BAND])
            for low in bands
        ]
        table.add_row(kind, *cells, _share([ok for _, ok in mine]))
    return table


def by_forgetting(model: DenseStack, prompts: list[Recall]) -> Table:
    """Exact answers per kind when one type of layers remembers nothing."""
    table = Table("forgets", *(f"asks {kind}" for kind in KINDS))
    for forgets in track(KINDS, "forgetting"):
        shares = defaultdict(list)
        for recall, ok in exact_match(model, prompts, forgets):
            shares[recall.kind].append(ok)
        table.add_row(forgets, *(_share(shares[kind]) for kind in KINDS))
    return table


def _share(right: list[bool]) -> str:
    return f"{sum(right)} of {len(right)}"


def main() -> None:
    """Reads the command line, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--forgetting-prompts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    model, console = load(arguments.directory), Console()
    prompts = fresh_prompts(arguments.prompts, arguments.seed)
    console.print(by_distance(exact_match(model, track(prompts, "asking"))))
    console.print(by_forgetting(model, prompts[: arguments.forgetting_prompts]))


if __name__ == "__main__":
    main()
