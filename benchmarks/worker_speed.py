"""Speed of hybridrt, or of transformers, with one checkpoint; see `workers.py`.

python benchmarks/worker_speed.py (hybridrt | transformers) CHECKPOINT
"""

import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import psutil
import torch
from workers import Answer, Job, serve

from hybridrt import LLM, SamplingParams, __version__
from hybridrt.measure.floor import Floor
from hybridrt.measure.runtime import Hybridrt, Prompt, Runtime
from hybridrt.measure.with_transformers import Transformers, load_transformers

MOST_TOKENS = 4096 + 128
MOST_AT_ONCE = 32
SHARE_OF_MEMORY = 0.45  # for transformers; the other sides have theirs at the same time

Answers = Mapping[str, Callable[[Job], Answer]]


class WithinMemory:
    """transformers, with prompts one behind the other where a batch does not fit the memory.

    Attributes:
        note: of the last answer.
    """

    def __init__(self, model: Transformers) -> None:
        self._model = model
        self.note: str | None = None
        most = int(SHARE_OF_MEMORY * psutil.virtual_memory().total)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def prefill(self, prompts: Sequence[Prompt]) -> float:
        self.note = None
        try:
            return self._model.prefill(prompts)
        except (MemoryError, RuntimeError) as error:
            if len(prompts) == 1 or "memory" not in str(error):
                raise
        self.note = "one prompt behind the other, for lack of memory"
        return sum(self._model.prefill([prompt]) for prompt in prompts)

    def decode(self, context: Prompt, last: Prompt, steps: int) -> list[float]:
        self.note = None
        return self._model.decode(context, last, steps)

    def complete(self, prompts: Sequence[Prompt], output_tokens: int) -> float:
        self.note = None
        return self._model.complete(prompts, output_tokens)


def answers_of_hybridrt(path: str) -> Answers:
    """The engine with its default settings."""
    llm = LLM(path, max_model_len=MOST_TOKENS, max_num_seqs=MOST_AT_ONCE)
    floor = Floor(llm.engine.model, llm.plan)

    def work(job: Job) -> Answer:
        of = floor.decode if job["of"] == "decode" else floor.prefill
        return {"answer": asdict(of(job["batch"], job["tokens"]))}

    def logits(job: Job) -> Answer:
        """As log-probabilities, which are the logits less a number a row."""
        size = llm.engine.model.config.vocab_size
        model = LLM(path, dtype="float32", cache_memory="1GiB") if job["exact"] else llm
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=size)
        prompts = [{"prompt_token_ids": [*job["context"], token]} for token in job["last"]]
        rows: list[list[float]] = []
        for output in model.generate(prompts, params):
            assert output.outputs[0].logprobs is not None
            (found,) = output.outputs[0].logprobs
            rows.append([found[token].logprob for token in range(size)])
        return {"answer": rows}

    return {**answers_of(Hybridrt(llm), __version__), "work": work, "logits": logits}


def answers_of_transformers(path: str) -> Answers:
    """A model's own forward."""
    import transformers

    model = load_transformers(path, torch.bfloat16, torch.device("cpu"))
    return answers_of(WithinMemory(model), transformers.__version__)


def answers_of(runtime: Runtime, version: str) -> Answers:
    """What any runtime can be asked."""

    def note() -> str | None:
        return getattr(runtime, "note", None)

    return {
        "about": lambda _: {"answer": version},
        "prefill": lambda job: {"answer": runtime.prefill(job["prompts"]), "note": note()},
        "decode": lambda job: {
            "answer": runtime.decode(job["context"], job["last"], job["steps"]),
            "note": note(),
        },
    }


SIDES = {"hybridrt": answers_of_hybridrt, "transformers": answers_of_transformers}

if __name__ == "__main__":
    side, checkpoint = sys.argv[1:]
    serve(SIDES[side](checkpoint))
