"""Runtimes in processes of their own, as runtimes that `hybridrt.measure` can run."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gguf_checkpoints import write_gguf
from workers import Job, Worker

from hybridrt.measure.runtime import Prompt

HERE = Path(__file__).resolve().parent


class SideFailedError(Exception):
    """A side can't do what it was asked to; `side` names it."""

    def __init__(self, side: str, why: str) -> None:
        super().__init__(why)
        self.side = side


class Remote:
    """A `Runtime` behind a worker.

    Attributes:
        note: what is special about an answer since this was None.
    """

    def __init__(self, name: str, worker: Worker) -> None:
        self._name, self._worker = name, worker
        self.note: str | None = None

    def prefill(self, prompts: Sequence[Prompt]) -> float:
        return self._ask({"what": "prefill", "prompts": prompts})

    def decode(self, context: Prompt, last: Prompt, steps: int) -> list[float]:
        return self._ask({"what": "decode", "context": context, "last": last, "steps": steps})

    def complete(self, prompts: Sequence[Prompt], output_tokens: int) -> float:
        return self._ask({"what": "complete", "prompts": prompts, "output_tokens": output_tokens})

    def logits(self, context: Prompt, last: Prompt, exact: bool = False) -> list[list[float]]:
        """Behind the context and each token of `last`, up to a number a row.

        `exact` is in float32, of hybridrt alone.
        """
        return self._ask({"what": "logits", "context": context, "last": last, "exact": exact})

    def about(self) -> str:
        """Its version."""
        return self._ask({"what": "about"})

    def work(self, what: str, batch: int, tokens: int) -> dict[str, float]:
        """The least work of a prefill or of a decode step; of hybridrt alone."""
        return self._ask({"what": "work", "of": what, "batch": batch, "tokens": tokens})

    def _ask(self, job: Job) -> Any:
        try:
            answer = self._worker.ask(job)
        except RuntimeError as error:
            raise SideFailedError(self._name, "its process ended") from error
        if "error" in answer:
            raise SideFailedError(self._name, answer["error"])
        self.note = answer.get("note") or self.note
        return answer["answer"]


def start(
    stack: ExitStack,
    checkpoint: Path,
    peers: Sequence[str],
    vllm: str | None,
    llama_cpp: str | None,
    threads: int,
) -> dict[str, Remote]:
    """hybridrt and its peers with a checkpoint, until the stack is closed."""
    ours = HERE / "worker_speed.py"
    commands = {
        name: [sys.executable, str(ours), name, str(checkpoint)] for name in ("hybridrt", *peers)
    }
    if vllm is not None:
        commands["vllm"] = [vllm, str(HERE / "worker_speed_vllm.py"), str(checkpoint)]
    if llama_cpp is not None:
        file = write_gguf(checkpoint, checkpoint.with_suffix(".gguf"))
        worker = str(HERE / "worker_speed_llama_cpp.py")
        commands["llama.cpp"] = [llama_cpp, worker, str(file)]
    return {
        name: Remote(name, stack.enter_context(Worker(*command, threads=threads)))
        for name, command in commands.items()
    }
