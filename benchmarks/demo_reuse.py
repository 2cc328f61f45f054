"""The demo checkpoint's answers with prefixes reused and without, on prompts that share much.

    OMP_NUM_THREADS=1 python benchmarks/demo_reuse.py [--texts 50] [--each 20]

Of each text 20 questions are asked, all in any order: first with a cache that holds everything,
then with one that is full of what runs, so that prefixes are dropped and requests preempted,
and both again without the prefix cache. A wrong state or page would show as a wrong answer, and
anything else that is wrong as another token: the model writes on behind the answer.
It writes demo_reuse.md and .json.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import torch
from about import machine
from versus_tables import markdown

sys.path.insert(0, str(Path(__file__).parents[1]))

from hybridrt import LLM, SamplingParams
from hybridrt.demo.facts import KINDS, Recall
from tests.reuse.questions import questions

HERE = Path(__file__).resolve().parent
COMMAND = "OMP_NUM_THREADS=1 python benchmarks/demo_reuse.py"
LEAST_HITS, LEAST_ACCURACY = 0.8, 0.98
MEMORY = {"ample": "256MiB", "full": "4MiB"}
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 512,
    "max_num_seqs": 24,
    "max_num_batched_tokens": 512,
    "page_size": 4,
    "poison_freed_pages": True,
}
WRITES_ON = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)

Row = dict[str, Any]
Tokens = list[list[int]]


def answer(recalls: list[Recall], memory: str, *, reuses: bool) -> tuple[Row, Tokens]:
    """How many of the questions are answered rightly, and all tokens that come."""
    llm = LLM("demo", cache_memory=memory, enable_prefix_caching=reuses, **OPTIONS)
    outputs = llm.generate([recall.prompt for recall in recalls], WRITES_ON)
    pairs = [*zip(recalls, outputs, strict=True)]
    wrong = Counter(r.kind for r, o in pairs if not o.outputs[0].text.startswith(r.answer))
    total = llm.stats()["total"]
    row = {
        "reuses": reuses,
        "wrong": {kind: wrong[kind] for kind in KINDS},
        "accuracy": 1 - wrong.total() / len(recalls),
        "hit_rate": total["hit_rate"],
        "notes": total["notes"],
        "preemptions": sum(output.metrics.num_preemptions for output in outputs),
    }
    return row, [output.outputs[0].token_ids for output in outputs]


def measure(recalls: list[Recall]) -> list[Row]:
    """A row for each memory, with and without; `same` counts the outputs that are equal."""
    rows: list[Row] = []
    for name, memory in MEMORY.items():
        without, expected = answer(recalls, memory, reuses=False)
        with_cache, tokens = answer(recalls, memory, reuses=True)
        same = sum(ours == theirs for ours, theirs in zip(tokens, expected, strict=True))
        rows += [{"memory": name, **without}, {"memory": name, **with_cache, "same": same}]
    return rows


def document(rows: list[Row], recalls: list[Recall], about: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    asked = Counter(recall.kind for recall in recalls)
    text = f"{len(recalls):,} prompts ({', '.join(f'{asked[kind]} ask {kind}' for kind in KINDS)})"
    text += f", {sum(len(r.prompt) for r in recalls) / len(recalls):.0f} tokens on the average, and"
    text += f" {WRITES_ON.max_tokens} tokens of output each. `ample` is {MEMORY['ample']}, `full`"
    text += f" {MEMORY['full']}. Aim: at least {LEAST_ACCURACY:.0%} right, as without, at a hit"
    text += f" rate over {LEAST_HITS:.0%} of the prompts' tokens."
    heads = ["memory", "reuse", "right", "wrong", "hit rate", "preempted", "outputs as without"]
    cells = [
        [
            row["memory"],
            "on" if row["reuses"] else "off",
            f"{row['accuracy']:.2%}",
            ", ".join(f"{n} {kind}" for kind, n in row["wrong"].items() if n) or "none",
            f"{row['hit_rate']:.1%}",
            str(row["preemptions"]),
            f"{row['same']:,}" if "same" in row else "",
        ]
        for row in rows
    ]
    machine_line = ", ".join(f"{name} {value}" for name, value in about.items())
    return "\n\n".join([f"`{COMMAND}`", machine_line, text, markdown(heads, cells)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=50)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "demo_reuse.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    recalls = questions(Random(31_000), args.texts, args.each)
    rows, about = measure(recalls), machine()
    args.out.write_text(document(rows, recalls, about))
    data = {"command": COMMAND, "machine": about, "prompts": len(recalls), "rows": rows}
    args.out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    print(args.out.read_text())


if __name__ == "__main__":
    main()
