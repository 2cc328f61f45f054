"""Speed of llama.cpp with one GGUF file, in an environment of its own; see `workers.py`.

    EXE benchmarks/worker_speed_llama_cpp.py FILE

Nothing of hybridrt is imported. Settings are llama.cpp's own: the cache is float16, a prompt is
computed in parts of 512 tokens. Each sequence has a part of the cache of its own.
"""

import ctypes
import os
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import llama_cpp as lib  # pyright: ignore[reportMissingImports]
import numpy as np
from workers import Answer, Job, serve

MOST_TOKENS = 2048  # in a batch, llama.cpp's default
ERROR = 4  # llama.cpp's number of what is worth printing

Token = tuple[int, int, int, bool]
"""Its id, its position, its sequence, and whether logits are wanted behind it."""


@lib.llama_log_callback
def _print_errors(level: int, text: bytes, _: Any) -> None:
    if level == ERROR:
        sys.stderr.write(text.decode(errors="replace"))


class LlamaCpp:
    """A model, and a context as large as the job at hand wants it."""

    def __init__(self, path: str, threads: int) -> None:
        lib.llama_log_set(_print_errors, None)
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(
            path.encode(), lib.llama_model_default_params()
        )
        if not self._model:
            raise ValueError(f"llama.cpp doesn't load {path}")
        self._vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._threads = threads
        self._context: Any = None
        self._made_for: tuple[int, ...] = ()

    def prefill(self, prompts: Sequence[Sequence[int]]) -> float:
        """Seconds until all the prompts have their first token."""
        self._prepare(len(prompts), max(map(len, prompts)))
        tokens = [token for i, prompt in enumerate(prompts) for token in _of_prompt(prompt, i)]
        parts = [_batch(tokens[i : i + MOST_TOKENS]) for i in range(0, len(tokens), MOST_TOKENS)]
        start = time.perf_counter()
        for part in parts:
            self._compute(part).argmax(-1)
        return time.perf_counter() - start

    def decode(self, context: Sequence[int], last: Sequence[int], steps: int) -> list[float]:
        """Seconds of each step in which all the sequences run, behind one that isn't counted.

        In that one llama.cpp copies the context.
        """
        tokens = self._begin(context, last, steps + 1)
        times: list[float] = []
        for position in range(len(context), len(context) + steps + 1):
            part = _batch([(token, position, i, True) for i, token in enumerate(tokens)])
            start = time.perf_counter()
            tokens = self._compute(part).argmax(-1).tolist()
            times.append(time.perf_counter() - start)
        return times[1:]

    def logits(self, context: Sequence[int], last: Sequence[int]) -> list[list[float]]:
        """Those behind each of `last`, in a step behind the context."""
        tokens = self._begin(context, last, 1)
        part = _batch([(token, len(context), i, True) for i, token in enumerate(tokens)])
        return self._compute(part).tolist()

    def _begin(self, context: Sequence[int], last: Sequence[int], steps: int) -> Sequence[int]:
        """Computes the context once, in a sequence behind those that get copies of it."""
        memory = self._prepare(len(last) + 1, len(context) + steps)
        tokens = list(_of_prompt(context, len(last)))
        for i in range(0, len(tokens), MOST_TOKENS):
            self._compute(_batch(tokens[i : i + MOST_TOKENS]))
        for i in range(len(last)):
            lib.llama_memory_seq_cp(memory, len(last), i, -1, -1)
        return last

    def _prepare(self, sequences: int, tokens: int) -> Any:
        """An empty cache for so many sequences of so many tokens."""
        if self._made_for != (sequences, tokens):
            if self._context:
                lib.llama_free(self._context)
            params = lib.llama_context_default_params()
            params.n_ctx, params.n_seq_max = sequences * (-(-tokens // 256) * 256), sequences
            params.n_batch = MOST_TOKENS
            params.n_threads = params.n_threads_batch = self._threads
            params.kv_unified = False
            self._context = lib.llama_init_from_model(self._model, params)
            if not self._context:
                self._made_for = ()
                raise MemoryError(f"no context of {sequences} sequences of {tokens} tokens")
            self._made_for = sequences, tokens
        memory = lib.llama_get_memory(self._context)
        lib.llama_memory_clear(memory, True)
        return memory

    def _compute(self, batch: Any) -> np.ndarray:
        """The logits that a batch asks for, `[rows, vocab]`; they are valid until the next."""
        if (result := lib.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode gives {result}")
        rows = sum(batch.logits[i] for i in range(batch.n_tokens))
        lib.llama_synchronize(self._context)
        if not rows:
            return np.empty((0, self._vocab), np.float32)
        return np.ctypeslib.as_array(lib.llama_get_logits(self._context), (rows, self._vocab))


def _of_prompt(prompt: Sequence[int], sequence: int) -> Iterator[Token]:
    for position, token in enumerate(prompt):
        yield token, position, sequence, position == len(prompt) - 1


def _batch(tokens: Sequence[Token]) -> Any:
    """As llama.cpp takes it; the arrays live as long as what is returned."""
    batch, count = lib.llama_batch(), len(tokens)
    ids, positions, sequences, wanted = zip(*tokens, strict=True)
    batch.n_tokens = count
    batch.token = (lib.llama_token * count)(*ids)
    batch.pos = (lib.llama_pos * count)(*positions)
    batch.n_seq_id = (ctypes.c_int32 * count)(*[1] * count)
    own = (lib.llama_seq_id * count)(*sequences)
    size, start = ctypes.sizeof(lib.llama_seq_id), ctypes.addressof(own)
    pointer = ctypes.POINTER(lib.llama_seq_id)
    each = [ctypes.cast(start + i * size, pointer) for i in range(count)]
    batch.seq_id = (pointer * count)(*each)
    batch.logits = (ctypes.c_int8 * count)(*wanted)
    batch.kept = own
    return batch


def main(path: str) -> None:
    try:
        runtime = LlamaCpp(path, int(os.environ["OMP_NUM_THREADS"]))
    except Exception as error:  # some models it has no code for
        why = f"{type(error).__name__}: {error}"
        serve({"about": lambda _: {"error": why}})
        return

    def prefill(job: Job) -> Answer:
        return {"answer": runtime.prefill(job["prompts"])}

    def decode(job: Job) -> Answer:
        return {"answer": runtime.decode(job["context"], job["last"], job["steps"])}

    def logits(job: Job) -> Answer:
        return {"answer": runtime.logits(job["context"], job["last"])}

    def about(_: Job) -> Answer:
        return {"answer": version("llama-cpp-python")}

    serve({"about": about, "prefill": prefill, "decode": decode, "logits": logits})


if __name__ == "__main__":
    # Answers go to where output went; whatever llama.cpp prints goes to standard error.
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = answers_to
    main(sys.argv[1])
