"""Speed of vLLM on the CPU with one checkpoint, in an environment of its own; see `workers.py`.

    EXE benchmarks/worker_speed_vllm.py CHECKPOINT

Nothing of hybridrt is imported. Its prefix cache is off, so that each sequence has memory of
its own; a context is computed for every sequence.
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "5")  # GiB

from workers import Answer, Job, serve

MOST_TOKENS = 4096 + 128
MOST_AT_ONCE = 32


class Vllm:
    """Its engine, a step at a time."""

    def __init__(self, path: str) -> None:
        from vllm import LLM  # pyright: ignore[reportMissingImports]

        self._engine: Any = LLM(
            path,
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=MOST_TOKENS,
            max_num_seqs=MOST_AT_ONCE,
            enable_prefix_caching=False,
        ).llm_engine
        self._added = 0

    def prefill(self, prompts: Sequence[Sequence[int]]) -> float:
        """Seconds until all the prompts have their first token."""
        self._add(prompts, 1)
        start = time.perf_counter()
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return time.perf_counter() - start

    def decode(self, context: Sequence[int], last: Sequence[int], steps: int) -> list[float]:
        """Seconds of each step in which all the sequences run."""
        names = self._add([[*context, token] for token in last], steps + 64)
        begun: set[str] = set()
        times: list[float] = []
        while len(times) < steps:
            whole = len(begun) == len(names)
            start = time.perf_counter()
            outputs = self._engine.step()
            if whole and len(outputs) == len(names):
                times.append(time.perf_counter() - start)
            begun.update(output.request_id for output in outputs)
        self._engine.abort_request(names)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return times

    def _add(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[str]:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        names: list[str] = []
        for prompt in prompts:
            names.append(str(self._added))
            self._added += 1
            self._engine.add_request(names[-1], {"prompt_token_ids": list(prompt)}, params)
        return names


def main(path: str) -> None:
    import vllm  # pyright: ignore[reportMissingImports]

    try:
        runtime = Vllm(path)
    except Exception as error:  # some models it has no kernels for on a CPU
        why = f"{type(error).__name__}: {error}"
        serve({"about": lambda _: {"error": why}})
        return

    def prefill(job: Job) -> Answer:
        return {"answer": runtime.prefill(job["prompts"])}

    def decode(job: Job) -> Answer:
        return {"answer": runtime.decode(job["context"], job["last"], job["steps"])}

    serve({"about": lambda _: {"answer": vllm.__version__}, "prefill": prefill, "decode": decode})


if __name__ == "__main__":
    # Answers go to where output went; whatever libraries print goes to standard error.
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = answers_to
    main(sys.argv[1])
