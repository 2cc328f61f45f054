"""A process that `hybridrt bench startup` starts: it says when each stage was over.

`python -m hybridrt.cli.bench.fresh_process SIDE JOB` prints the time of day at the end of
each stage, in seconds. The side `about` prints what the model is instead, and what its stages
have to do at least.
"""

import gc
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrt.llm import LLM

Job = dict[str, Any]
PIECE = 2**24  # bytes read at once


def hybridrt(job: Job) -> dict[str, float]:
    """What `hybridrt generate` does, from its imports on."""
    gc.disable()
    import hybridrt.cli.app
    import hybridrt.llm  # noqa: F401

    imported = time.time()
    llm = _load(job)
    loaded = time.time()
    next(llm.stream({"prompt_token_ids": _prompt(job)}))
    return {"import": imported, "load": loaded, "first token": time.time()}


def transformers(job: Job) -> dict[str, float]:
    """The same in transformers."""
    import torch
    from transformers import AutoModelForCausalLM  # noqa: F401

    from hybridrt.measure.with_transformers import load_transformers

    imported = time.time()
    dtype, device = getattr(torch, job["dtype"]), torch.device(job["device"])
    model = load_transformers(job["model"], dtype, device)
    loaded = time.time()
    model.prefill([_prompt(job)])
    return {"import": imported, "load": loaded, "first token": time.time()}


def torch_alone(_: Job) -> dict[str, float]:
    """What no program with torch can be without."""
    gc.disable()
    import torch  # noqa: F401

    return {"import": time.time()}


def about(job: Job) -> dict[str, Any]:
    """What the model is, the seconds of reading its files, and the work of the first token."""
    from hybridrt.measure.floor import Floor

    llm = _load(job)
    next(llm.stream({"prompt_token_ids": _prompt(job)}))  # compiles what is not yet on disk
    model = llm.engine.model
    parameter = next(model.parameters())
    return {
        "seconds_to_read": _seconds_to_read(job["model"]),
        "work": asdict(Floor(model, llm.plan).prefill(1, job["tokens"])),
        "device": str(parameter.device),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "vocab_size": model.config.vocab_size,
    }


def _load(job: Job) -> "LLM":
    from hybridrt.cli.models import load_llm
    from hybridrt.cli.options import EngineOptions

    return load_llm(job["model"], EngineOptions(**job["engine"]))


def _prompt(job: Job) -> list[int]:
    random, vocab_size = Random(job["seed"]), job.get("vocab_size", 1)
    return [random.randrange(vocab_size) for _ in range(job["tokens"])]


def _seconds_to_read(model: str) -> float:
    """The checkpoint's weights, from files that are in memory already, into memory."""
    from hybridrt.engine.checkpoint import locate

    path = locate(model)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    seconds = [_seconds_to_read_files(files) for _ in range(3)]
    return min(seconds)


def _seconds_to_read_files(files: list[Path]) -> float:
    piece = bytearray(PIECE)
    start = time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(piece):
                pass
    return time.perf_counter() - start


SIDES = {"hybridrt": hybridrt, "transformers": transformers, "torch": torch_alone, "about": about}


def main() -> None:
    """Answers for one side, or says what is wrong as a command does."""
    from hybridrt.cli.errors import USER_ERROR, report

    side, job = sys.argv[1:]
    try:
        answer = SIDES[side](json.loads(job))
    except (ValueError, OSError, ImportError) as error:
        report(error)
        sys.exit(USER_ERROR)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
