"""Loading a checkpoint of 2 GB: peak memory, and speed beside safetensors reading the same file.

    python benchmarks/loading.py [--json PATH] [--md PATH] [--repeats 7]

The checkpoint is a Llama of 1.04 billion parameters in bfloat16, one file, made in a temporary
folder and read once before, so that it is in the system's cache. Each measurement is a process of
its own. `safetensors` is its `load_file` with every tensor copied out of the file, as what it
returns are the file's own pages; both copy into memory that is new.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFIG = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
FILE = "model.safetensors"
CACHE = 8 * 2**20  # bytes
READERS = {
    "hybridrt": "hybridrt, onto the model",
    "safetensors": "safetensors, each tensor copied",
}


def main() -> None:
    options = _options()
    if options.measure:
        print(json.dumps(MEASURES[options.measure](options.folder)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoint(folder)
        result = run(folder, options.repeats)
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.md:
        options.md.write_text(table(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--md", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def make_checkpoint(folder: Path, **changes: Any) -> None:
    """Writes the configuration, and weights that are small and unlike."""
    import torch
    from safetensors.torch import save_file

    from hybridrt.engine.slots import parameter_slots

    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    model = _blueprint(folder).model
    shapes = {slot.names[0]: slot.shape for slot in parameter_slots(model, ())}
    draw = torch.Generator().manual_seed(0)
    weights = {
        name: torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=draw)
        for name, shape in shapes.items()
    }
    save_file(weights, folder / FILE, metadata={"format": "pt"})


def run(folder: Path, repeats: int) -> dict[str, Any]:
    """Everything that is measured; times in turns, so that a busy moment meets both."""
    (folder / FILE).read_bytes()
    memory = _child("memory", folder)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in READERS}
    for _ in range(repeats):
        for name, found in runs.items():
            found.append(_child(name, folder))
    readers = {name: _summary(found) for name, found in runs.items()}
    ours, theirs = readers["hybridrt"], readers["safetensors"]
    return {
        "file_bytes": (folder / FILE).stat().st_size,
        **memory,
        "readers": readers,
        "times_safetensors": {key: ours[key] / theirs[key] for key in ours},
    }


def _summary(runs: list[dict[str, float]]) -> dict[str, float]:
    """Medians, and the least, which other work on the machine delays least."""
    seconds, cpu = ([run[key] for run in runs] for key in ("seconds", "cpu_seconds"))
    return {
        "median_seconds": statistics.median(seconds),
        "least_seconds": min(seconds),
        "median_cpu_seconds": statistics.median(cpu),
    }


def _child(measure: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", measure, "--folder", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def _blueprint(folder: Path) -> Any:
    from hybridrt.config import EngineConfig
    from hybridrt.engine.loading import draw_up

    return draw_up(EngineConfig(model=str(folder), device="cpu", cache_memory=CACHE))


def _peak() -> int:
    """Most bytes that this process has had in memory. `ru_maxrss` would count its parent's too."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) * 1024


def _timed(work: Callable[[], object]) -> dict[str, float]:
    """Seconds of the clock, and of all processors."""
    start, cpu = time.perf_counter(), time.process_time()
    kept = work()  # until the clock has stopped
    seconds = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    del kept
    return seconds


def memory_of_loading(folder: Path) -> dict[str, int]:
    """How far the process grows over the whole of loading, its small cache left out."""
    import torch

    from hybridrt.engine.loading import load

    blueprint = _blueprint(folder)
    parameters = {id(p): p for p in blueprint.model.parameters()}.values()
    largest = max(parameters, key=torch.Tensor.numel)
    sizes = {
        "model_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "largest_tensor_bytes": largest.numel() * largest.element_size(),
    }
    with tempfile.TemporaryDirectory() as name:  # what libraries set up once
        make_checkpoint(Path(name), vocab_size=64, intermediate_size=64, num_hidden_layers=1)
        load(_blueprint(Path(name)), progress=False)
    before = _peak()
    pool = load(blueprint, progress=False)
    grown = _peak() - before - pool.plan.pool_bytes
    return {**sizes, "grown_bytes": grown}


def seconds_of_hybridrt(folder: Path) -> dict[str, float]:
    """Until every weight is in its place."""
    import torch

    from hybridrt.engine.weights import load_weights

    model = _blueprint(folder).model
    return _timed(lambda: load_weights(model, folder, device=torch.device("cpu")))


def seconds_of_safetensors(folder: Path) -> dict[str, float]:
    """Until every tensor is in memory of its own."""
    from safetensors.torch import load_file

    return _timed(lambda: {n: tensor.clone() for n, tensor in load_file(folder / FILE).items()})


MEASURES = {
    "memory": memory_of_loading,
    "hybridrt": seconds_of_hybridrt,
    "safetensors": seconds_of_safetensors,
}


def table(result: dict[str, Any]) -> str:
    """The result as a page."""
    mib = 2**20
    beyond = result["grown_bytes"] - result["model_bytes"]
    lines = [
        "# Loading a checkpoint of 2 GB",
        "",
        f"`python benchmarks/loading.py`; one file of {result['file_bytes']:,} bytes, in the "
        "system's cache.",
        "",
        "| memory | MiB |",
        "|---|---|",
        f"| model | {result['model_bytes'] / mib:.1f} |",
        f"| largest tensor | {result['largest_tensor_bytes'] / mib:.1f} |",
        f"| peak, above what the process had before | {result['grown_bytes'] / mib:.1f} |",
        f"| of that, beyond the model | {beyond / mib:.1f} |",
        "",
        "| read by | median s | least s | median s of processors | GB/s at the least |",
        "|---|---|---|---|---|",
    ]
    for key, name in READERS.items():
        found = result["readers"][key]
        speed = result["file_bytes"] / found["least_seconds"] / 1e9
        numbers = " | ".join(f"{seconds:.2f}" for seconds in found.values())
        lines.append(f"| {name} | {numbers} | {speed:.2f} |")
    times = " | ".join(f"{ratio:.2f}" for ratio in result["times_safetensors"].values())
    lines += [f"| **hybridrt in times of safetensors** | {times} | |", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
