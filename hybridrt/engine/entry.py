"""A request in the engine, and what can be said of it."""

import time
from dataclasses import dataclass, field

from hybridrt.engine.sequence import Sequence
from hybridrt.request import Request, RequestMetrics, RequestOutput


@dataclass(slots=True)
class Entry:
    """A request in the engine: its sequences, and when things happened to it."""

    request: Request
    sequences: list[Sequence]
    arrival_time: float = field(default_factory=time.monotonic)
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    _prompt_token_ids: list[int] = field(init=False)  # one list for all outputs, of every step

    def __post_init__(self) -> None:
        self._prompt_token_ids = list(self.request.prompt_token_ids)

    @property
    def finished(self) -> bool:
        return all(sequence.finish_reason for sequence in self.sequences)

    def note_scheduled(self, now: float) -> None:
        """Its first tokens are on their way."""
        if self.first_scheduled_time is None:
            self.first_scheduled_time = now

    def note_token(self) -> None:
        """One of its sequences has a new token."""
        if self.first_token_time is None:
            self.first_token_time = time.monotonic()

    def output(self) -> RequestOutput:
        """What is known of the request now."""
        first = self.sequences[0]
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self._prompt_token_ids,
            prompt_logprobs=None if first.prompt_logprobs is None else list(first.prompt_logprobs),
            num_cached_tokens=first.num_cached_tokens,
            cache_note=first.cache_note or "disabled",
            metrics=self._metrics(),
            outputs=[sequence.output() for sequence in self.sequences],
        )

    def _metrics(self) -> RequestMetrics:
        return RequestMetrics(
            arrival_time=self.arrival_time,
            first_scheduled_time=self.first_scheduled_time,
            first_token_time=self.first_token_time,
            finished_time=time.monotonic() if self.finished else None,
            num_preemptions=sum(sequence.num_preemptions for sequence in self.sequences),
        )
