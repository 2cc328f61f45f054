"""What is measured of a runtime, and hybridrt's own side of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Protocol

from hybridrt.cache.slabs import OutOfPages
from hybridrt.engine.handover import RequestInFlight
from hybridrt.llm import LLM
from hybridrt.measure.timing import collector_off
from hybridrt.request import RequestOutput, SamplingParams

Prompt = Sequence[int]


class Runtime(Protocol):
    """A model in a runtime. What is generated is greedy, and nothing ends it early."""

    def prefill(self, prompts: Sequence[Prompt]) -> float:
        """Seconds until all the prompts have their first token."""
        ...

    def decode(self, context: Prompt, last: Prompt, steps: int) -> list[float]:
        """Seconds of each step of sequences that are `context` and one token of `last`.

        The context is the same in all, so that it need not be computed for each; they don't
        share its memory, and part at once, as their last tokens are unlike.
        """
        ...

    def complete(self, prompts: Sequence[Prompt], output_tokens: int) -> float:
        """Seconds until all the prompts have so many tokens."""
        ...


def random_prompts(vocab_size: int, count: int, tokens: int, seed: int) -> list[list[int]]:
    """Prompts of random tokens."""
    random = Random(seed)
    return [[random.randrange(vocab_size) for _ in range(tokens)] for _ in range(count)]


class Hybridrt:
    """An `LLM`, through the engine with all that it does, step after step as in `generate`.

    `clock` says what a second is: of the wall, or of this process on one thread, which
    other programs disturb less.

    Attributes:
        num_preemptions: of the requests so far, which says that the cache is too small.
    """

    def __init__(self, llm: LLM, clock: Callable[[], float] = time.perf_counter) -> None:
        self.llm = llm
        self._clock = clock
        self.num_preemptions = 0
        self._names = (f"measured-{number}" for number in count())
        self._context: tuple[Prompt, RequestInFlight] | None = None

    def prefill(self, prompts: Sequence[Prompt]) -> float:
        return self.complete(prompts, 1)

    def complete(self, prompts: Sequence[Prompt], output_tokens: int) -> float:
        for prompt in prompts:
            self.llm.add_request({"prompt_token_ids": list(prompt)}, _params(output_tokens))
        with collector_off(), self.llm.engine.in_a_row():
            start = self._clock()
            while self.llm.has_unfinished:
                self._step()
            return self._clock() - start

    def decode(self, context: Prompt, last: Prompt, steps: int) -> list[float]:
        """See `Runtime`.

        Raises:
            ValueError: the sequences never ran all at once.
        """
        first = self._in_flight(context, steps)
        copies = [_ending_in(first, next(self._names), token) for token in last]
        running: list[str] = []
        times: list[float] = []
        try:
            for copy in copies:
                running.append(self.llm.import_request(copy))
            with collector_off(), self.llm.engine.in_a_row():
                for _ in range(steps):
                    start = self._clock()
                    outputs = self._step()
                    if len(outputs) == len(last):
                        times.append(self._clock() - start)
        except OutOfPages:
            times = []
        finally:
            for name in running:
                self.llm.abort(name)
        if not times:
            raise ValueError(
                f"a batch of {len(last)} sequences of {len(context)} tokens never ran as a whole: "
                f"the cache is too small for it; raise cache_memory or lower the batch"
            )
        return times

    def _step(self) -> list[RequestOutput]:
        outputs = self.llm.step()
        self.num_preemptions += sum(o.metrics.num_preemptions for o in outputs if o.finished)
        return outputs

    def _in_flight(self, context: Prompt, steps: int) -> RequestInFlight:
        """The context, computed, with one token behind it. The latest one is kept."""
        if self._context is None or self._context[0] != context:
            params = _params(self.llm.max_model_len - len(context))
            request = {"prompt_token_ids": list(context)}
            name = self.llm.add_request(request, params, next(self._names))
            try:
                while not self.llm.step():
                    pass
                self._context = context, self.llm.export_request(name)
            finally:
                self.llm.abort(name)
        return self._context[1]


def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def _ending_in(flight: RequestInFlight, name: str, token: int) -> RequestInFlight:
    """The same request with another name and last token, which is not yet computed."""
    (sequence,) = flight.sequences
    sequence = replace(sequence, token_ids=(*sequence.token_ids[:-1], token))
    request = replace(flight.request, request_id=name, cache_salt=name)  # it has its own pages
    return replace(flight, request=request, sequences=(sequence,))
