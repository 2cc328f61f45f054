"""hybridrt beside transformers: the same checkpoint, dtype and prompts, one after the other.

    python benchmarks/compare.py [--models llama jamba ...] [--out benchmarks/results/compare.md]

For each model it prints prefill in tokens per second and decode in milliseconds per step, at
batch 1 and 8, with the ratio of the two runtimes, and what the machine itself allows: a decode
step can't take less than reading the weights once, a prefill not less than its matrix products.
Both limits are measured in the same run. `--out` writes the table (.md) and the numbers (.json).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from limits import matrix_rate, median_seconds, read_bandwidth
from models import MODELS, VOCAB, make_checkpoint
from rich.console import Console
from rich.table import Table

from hybridrt import LLM, SamplingParams

PROMPT = 128
BATCHES = (1, 8)
STEPS = 16


@dataclass(frozen=True)
class Row:
    """One measurement of one model: seconds of both runtimes, and of the machine's limit."""

    model: str
    what: str
    batch: int
    hybridrt: float
    transformers: float
    limit: float

    @property
    def ratio(self) -> float:
        return self.transformers / self.hybridrt


def prompts(batch: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(batch)
    return torch.randint(10, VOCAB, (batch, PROMPT), generator=generator).tolist()


class Hybridrt:
    """Seconds of a prefill and of a decode step, through the engine with all it does."""

    def __init__(self, path: Path) -> None:
        self.llm = LLM(
            str(path), max_num_batched_tokens=8 * PROMPT, cache_memory="1GiB", max_model_len=512
        )

    def prefill(self, batch: int) -> float:
        def run() -> None:
            self._run(batch, 1)

        return median_seconds(run, 5)

    def decode(self, batch: int) -> float:
        times = self._run(batch, STEPS + 4)
        return statistics.median(times[4:])

    def _run(self, batch: int, num_tokens: int) -> list[float]:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        for prompt in prompts(batch):
            self.llm.add_request(prompt, params)
        times: list[float] = []
        while self.llm.has_unfinished:
            start = time.perf_counter()
            self.llm.step()
            times.append(time.perf_counter() - start)
        return times


class Transformers:
    """The same through a model's forward and its own cache."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def prefill(self, batch: int) -> float:
        ids = torch.tensor(prompts(batch))

        def run() -> None:
            self.model(ids, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)

        return median_seconds(run, 5)

    @torch.inference_mode()
    def decode(self, batch: int) -> float:
        ids = torch.tensor(prompts(batch))
        out = self.model(ids, use_cache=True, logits_to_keep=1)
        times: list[float] = []
        for step in range(STEPS + 4):
            start = time.perf_counter()
            token = out.logits[:, -1:].argmax(-1)
            out = self.model(
                token,
                past_key_values=out.past_key_values,
                position_ids=torch.full((batch, 1), PROMPT + step),
                use_cache=True,
            )
            out.logits[:, -1].argmax(-1).tolist()
            times.append(time.perf_counter() - start)
        return statistics.median(times[4:])


def measure(model: str, path: Path, bandwidth: float, rate: float) -> list[Row]:
    seconds: dict[str, dict[tuple[str, int], float]] = {}
    limits: dict[tuple[str, int], float] = {}
    for name, runtime in (("hybridrt", Hybridrt), ("transformers", Transformers)):
        peer = runtime(path)
        seconds[name] = {
            (what, batch): getattr(peer, what)(batch)
            for what in ("prefill", "decode")
            for batch in BATCHES
        }
        if isinstance(peer, Hybridrt):
            limits = _limits(peer.llm, bandwidth, rate)
        del peer
    keys = seconds["hybridrt"]
    return [Row(model, *key, keys[key], seconds["transformers"][key], limits[key]) for key in keys]


def _limits(llm: LLM, bandwidth: float, rate: float) -> dict[tuple[str, int], float]:
    """Seconds that reading every weight once, and multiplying with those in use, must take."""
    model = llm.engine.model
    # An embedding is looked up, not multiplied, and a prefill needs one row of logits.
    named = {n: p for n, p in model.named_parameters() if not n.endswith("embed_tokens.weight")}
    size = sum(p.nbytes for p in named.values())
    active = sum(p.numel() for n, p in named.items() if not n.startswith("lm_head"))
    experts = getattr(model.config, "n_routed_experts", None)
    routed = sum(p.numel() for n, p in named.items() if ".experts." in n)
    if experts:
        active -= routed * (1 - model.config.num_experts_per_tok / experts)  # pyright: ignore
    limits: dict[tuple[str, int], float] = {}
    for batch in BATCHES:
        limits["prefill", batch] = 2 * active * PROMPT * batch / rate
        idle = 1 - min(1, batch * model.config.num_experts_per_tok / experts) if experts else 0  # pyright: ignore
        limits["decode", batch] = (size - 2 * routed * idle) / bandwidth
    return limits


def table(rows: list[Row]) -> Table:
    columns = ("model", "what", "batch", "hybridrt", "transformers", "ratio", "machine's limit")
    result = Table(*columns)
    for row in rows:
        speed = (
            (lambda s, b=row.batch: f"{b * PROMPT / s:,.0f} tok/s")
            if row.what == "prefill"
            else (lambda s: f"{1000 * s:.1f} ms")
        )
        result.add_row(
            row.model,
            row.what,
            str(row.batch),
            speed(row.hybridrt),
            speed(row.transformers),
            f"{row.ratio:.2f}",
            f"{speed(row.limit)} ({row.limit / row.hybridrt:.0%})",
        )
    return result


def machine() -> dict[str, str | int]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "?")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {
        "cpu": cpu,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    bandwidth, rate = read_bandwidth(), matrix_rate()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        for model in args.models:
            rows += measure(model, make_checkpoint(model, Path(directory)), bandwidth, rate)
    note = (
        f"{json.dumps(machine())}\n"
        f"reads {bandwidth / 1e9:.1f} GB/s, bf16 products {rate / 1e12:.2f} TFLOP/s, bfloat16, "
        f"prompts of {PROMPT} tokens"
    )
    Console(width=110).print(table(rows), note)
    if args.out:
        write(args.out, rows, note, bandwidth, rate)


def write(out: Path, rows: list[Row], note: str, bandwidth: float, rate: float) -> None:
    command = "python benchmarks/compare.py --out " + str(out)
    with out.with_suffix(".md").open("w") as file:
        console = Console(file=file, width=110)
        console.print("```\n" + command + "\n" + note, table(rows), "```", sep="\n", markup=False)
    data = {
        "command": command,
        "machine": machine(),
        "read_bytes_per_second": bandwidth,
        "bf16_operations_per_second": rate,
        "prompt_tokens": PROMPT,
        "rows": [asdict(row) for row in rows],
    }
    out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
