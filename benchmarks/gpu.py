"""Models of released geometries on one GPU: steps and prompts beside the floor, and transformers.

    python benchmarks/gpu.py [MODEL ...] [--against MODEL ...] [--out FILE.json]

With `--out`, the tables stand beside it as Markdown. What was measured of other models stays in
them, with the commit that it was measured at.

Steps of 1 and 64 sequences behind 1,024 tokens, and a prompt of 8,192, of weights drawn at
random in bfloat16 (`gpu_models.py`). The floor is of what the GPU does in the same process
(`hybridrt.measure`), with the states that a step has to write. Beside what a step takes stands
what the GPU was at work for it: the rest is the host's, which nothing hides. With `--against`: 32
prompts of 128 tokens and 64 more each, here and in transformers (the faster of two runs), for the
models it names.
"""

import argparse
import gc
import json
import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import gpu_tables
import torch
from about import machine
from gpu_models import MODELS, random_llm, random_transformers

from hybridrt import LLM
from hybridrt.measure.floor import Floor, Work
from hybridrt.measure.machine import Limits, measure_limits
from hybridrt.measure.runtime import Hybridrt, random_prompts
from hybridrt.measure.timing import Spread, take_turns
from hybridrt.measure.with_transformers import Transformers
from hybridrt.measure.work import between_tokens, to_completion, to_first_token

CUDA = torch.device("cuda")
BATCHES, CONTEXT, STEPS = (1, 64), 1024, 32
PROMPT = 8192
REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 32, 128, 64
OPTIONS: dict[str, Any] = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": PROMPT,
    "max_model_len": PROMPT + 256,
    "cache_memory": "24GiB",
    "enable_prefix_caching": False,
}


def measure(model: str, limits: Limits, repeats: int, against: bool) -> dict[str, Any]:
    """Everything of one model."""
    llm = random_llm(model, **OPTIONS)
    floor, runtimes = Floor(llm.engine.model, llm.plan), {"hybridrt": Hybridrt(llm)}
    vocab = llm.engine.model.config.vocab_size
    rows: list[dict[str, Any]] = []
    for batch in BATCHES:
        sides = between_tokens(runtimes, vocab, batch, CONTEXT, STEPS)
        took = take_turns(sides, repeats)["hybridrt"]
        work = floor.decode(batch, CONTEXT)
        written = batch * llm.plan.bytes_per_sequence
        least = Work(work.num_bytes + written, work.operations).seconds(limits)
        row = {"what": "step", "batch": batch, "tokens": CONTEXT} | _beside(took, least)
        rows.append(row | {"on_gpu": step_seconds(llm, batch)})
    took = take_turns(to_first_token(runtimes, vocab, 1, PROMPT), repeats)["hybridrt"]
    least = floor.prefill(1, PROMPT).seconds(limits)
    rows.append({"what": "prompt", "batch": 1, "tokens": PROMPT} | _beside(took, least))
    found = {"name": model, "parameters": _count(llm), "rows": rows}
    if against:
        work = (REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS)
        ours = take_turns(to_completion(runtimes, vocab, *work), 2)["hybridrt"]
        del llm, runtimes
        gc.collect()
        torch.cuda.empty_cache()
        found["against"] = {"hybridrt": ours.median} | _transformers(model, vocab)
    return found


def step_seconds(llm: LLM, batch: int) -> float | None:
    """What the GPU takes for a step of so many rows, launched again and again; None: no graphs."""
    decode = llm.engine._runner.static_decode
    if decode is None:
        return None
    static = decode.batches.smallest(decode.batches.of(batch))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    with torch.inference_mode():
        for event in events:
            decode._step(static)
            event.record()
    torch.cuda.synchronize()
    return median(a.elapsed_time(b) for a, b in pairwise(events)) / 1000


def _transformers(model: str, vocab: int) -> dict[str, Any]:
    try:
        theirs = Transformers(random_transformers(model))
        prompts = random_prompts(vocab, REQUESTS, PROMPT_TOKENS, 0)
        theirs.complete(prompts, 4)
        return {"transformers": min(theirs.complete(prompts, OUTPUT_TOKENS) for _ in range(2))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _beside(took: Spread, least: float) -> dict[str, Any]:
    return {"seconds": took.median, "lower": took.lower, "upper": took.upper, "floor": least}


def _count(llm: LLM) -> int:
    return sum(p.numel() for p in llm.engine.model.parameters())


def say(found: dict[str, Any]) -> None:
    """A model's rows, for who waits."""
    for row in found["rows"]:
        name = f"{found['name']} {row['what']} {row['batch']} x {row['tokens']}"
        on_gpu = row.get("on_gpu")
        hidden = "" if on_gpu is None else f", on the GPU {1e3 * on_gpu:.2f}"
        share = row["floor"] / row["seconds"]
        print(
            f"{name}: {1e3 * row['seconds']:.2f} ms, {share:.0%} of the limit{hidden}", flush=True
        )
    if "against" in found:
        print(f"{found['name']}: {found['against']}", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Reads the command line, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", nargs="*", default=(), choices=MODELS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    limits = measure_limits(CUDA, torch.bfloat16)
    print(f"{limits.bytes_per_second / 1e12:.2f} TB/s", end=", ")
    print(f"{limits.operations_per_second / 1e12:.0f} TFLOP/s", flush=True)
    about = machine() | {"bytes_per_second": limits.bytes_per_second}
    about |= {"operations_per_second": limits.operations_per_second}
    found = gpu_tables.measured_before(options.out, "models")
    for model in options.models:
        of_model = measure(model, limits, options.repeats, model in options.against)
        found[model] = of_model | {"commit": about["commit"]}
        say(of_model)
        if options.out:
            models = [*found.values()]
            text = json.dumps({"machine": about, "models": models}, indent=1)
            options.out.write_text(text + "\n", encoding="utf-8")
            command = shlex.join(["python", "benchmarks/gpu.py", *arguments])
            gpu_tables.write(options.out, command, about, gpu_tables.of_models(models))
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
