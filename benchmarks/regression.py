"""Whether hybridrt has become slower: small models, in times of plain torch operations.

    python benchmarks/regression.py [--models llama ...] [--update]

Of small models with random weights it measures the time to the first token, the time between
tokens and that of many requests, each in turns with a reference that never changes
(`plain_torch.py`), so that the machine's noise falls on both. What counts is the ratio of the
medians, in time of the process on one thread.

It ends with 1, and says which rows, where a ratio is above that in regression.json by more than
its tolerance, twice in a row. A ratio says nothing of processors of another kind, so the file has a
baseline for each; without one for this kind it ends with 2. `--update` writes this kind's, for the
models asked for, and at which commit each was measured.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numba
import torch
from about import machine
from models import make_checkpoint
from plain_torch import VOCAB, PlainTorch

from hybridrt import LLM
from hybridrt.kernels.cpu.pairs import BY_PAIRS
from hybridrt.kernels.cpu.tile_registers import multiplies_tiles
from hybridrt.measure.runtime import Hybridrt
from hybridrt.measure.timing import Side, take_turns
from hybridrt.measure.work import Runtimes, between_tokens, to_completion, to_first_token

OUT = Path(__file__).resolve().parent / "results" / "regression.json"
TOLERANCE = 0.2
SMALL: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "deepseek_v2": {"moe_intermediate_size": 128, "kv_lora_rank": 128},
    "jamba": {"attn_layer_period": 4},
    "bamba": {"attn_layer_indices": [2], "mamba_n_heads": 8},
    "qwen3_next": {"head_dim": 64, "moe_intermediate_size": 128, "linear_num_value_heads": 8}
    | {"linear_num_key_heads": 4, "shared_expert_intermediate_size": 128},
    "lfm2": {"full_attn_idxs": [1, 3]},
}
WHAT: Mapping[str, Callable[[Runtimes], dict[str, Side]]] = {
    "first token": lambda runtimes: to_first_token(runtimes, VOCAB, 1, 256),
    "between tokens": lambda runtimes: between_tokens(runtimes, VOCAB, 4, 256, 16),
    "many requests": lambda runtimes: to_completion(runtimes, VOCAB, 16, 64, 16),
}

Ratios = dict[str, float]


def processor() -> str:
    """The kind: its name, and the widest instructions that products have."""
    capability = torch.backends.cpu.get_cpu_capability()
    widest = "AMX" if multiplies_tiles() else "AVX512_BF16" if BY_PAIRS else capability
    return f"{machine()['cpu']}, {widest}"


def measure(model: str, repeats: int, only: Mapping[str, float] | None = None) -> Ratios:
    """Our time over the reference's, by `model: what`. With `only`, of those alone."""
    ratios: Ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(model, Path(folder), **SMALL, **MODELS[model])
        llm = LLM(str(path), cache_memory="256MiB", max_model_len=1024)
    clock = time.process_time
    runtimes: Runtimes = {"hybridrt": Hybridrt(llm, clock), "reference": PlainTorch(clock)}
    for what, sides in WHAT.items():
        name = f"{model}: {what}"
        if only is None or name in only:
            spreads = take_turns(sides(runtimes), repeats)
            ratios[name] = spreads["hybridrt"].median / spreads["reference"].median
    return ratios


def slower(ratios: Ratios, baseline: Ratios, tolerance: float) -> Ratios:
    """The rows that are slower than they were, by how many times."""
    times = {name: ratio / baseline[name] for name, ratio in ratios.items() if name in baseline}
    return {name: factor for name, factor in times.items() if factor > 1 + tolerance}


def check(models: list[str], baseline: Ratios, tolerance: float, repeats: int) -> Ratios:
    """Measures, prints every row, and returns those that were slower both times."""
    confirmed: Ratios = {}
    for model in models:
        ratios = measure(model, repeats)
        suspects = slower(ratios, baseline, tolerance)
        if suspects:
            again = measure(model, repeats, suspects)
            ratios |= {name: min(ratios[name], ratio) for name, ratio in again.items()}
            confirmed |= slower(ratios, baseline, tolerance)
        for name, ratio in ratios.items():
            was = f"{baseline[name]:.2f}" if name in baseline else "not known"
            print(f"{name:28} {ratio:6.2f} times the reference; it was {was}")
    return confirmed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--update", action="store_true", help="take what is measured as it is")
    parser.add_argument("--baseline", type=Path, default=OUT)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    stored: dict[str, Any] = {"command": "python benchmarks/regression.py --update"}
    stored |= {"tolerance": TOLERANCE, "baselines": {}}
    if args.baseline.exists():
        stored |= json.loads(args.baseline.read_text())
    here, baselines = processor(), stored["baselines"]
    if args.update:
        baseline = baselines.setdefault(here, {"machines": {}, "ratios": {}})
        for model in args.models:
            found = measure(model, args.repeats)
            baseline["ratios"] |= {name: round(ratio, 3) for name, ratio in found.items()}
            baseline["machines"][model] = machine()
        args.baseline.write_text(json.dumps(stored, indent=1) + "\n")
        return
    if here not in baselines:
        known = "; ".join(baselines) or "none"
        print(
            f"{args.baseline} has no baseline of {here} (it has: {known}): make one by --update, "
            "with the code that this is to be compared with",
            file=sys.stderr,
        )
        sys.exit(2)
    slow = check(args.models, baselines[here]["ratios"], stored["tolerance"], args.repeats)
    for name, factor in slow.items():
        print(f"SLOWER: {name} takes {factor:.2f} times what it took", file=sys.stderr)
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    main()
