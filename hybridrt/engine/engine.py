"""The engine: `schedule -> run -> commit`, one step at a time."""

import time
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from functools import cached_property

from hybridrt.cache.plan import CachePlan
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.config import EngineConfig
from hybridrt.engine.check_request import check_request
from hybridrt.engine.checkpoint import read_generation_config
from hybridrt.engine.detokenizer import Detokenizer
from hybridrt.engine.handover import (
    Fingerprint,
    RequestInFlight,
    check_fingerprint,
    fingerprint,
    take_down,
    take_up,
)
from hybridrt.engine.loading import draw_up, load
from hybridrt.engine.runner import RowResult, Runner
from hybridrt.engine.sampler import derive_seed
from hybridrt.engine.scheduler import Row, Scheduler
from hybridrt.engine.sequence import Sequence
from hybridrt.engine.tokenizer import Tokenizer
from hybridrt.request import Request, RequestMetrics, RequestOutput

CACHE_NOTE = "disabled"
"""Why no token came from the cache: prefixes are not reused yet."""


@dataclass(slots=True)
class _Entry:
    """A request in the engine: its sequences, and when things happened to it."""

    request: Request
    sequences: list[Sequence]
    arrival_time: float = field(default_factory=time.monotonic)
    first_scheduled_time: float | None = None
    first_token_time: float | None = None

    @property
    def finished(self) -> bool:
        return all(sequence.finish_reason for sequence in self.sequences)


class Engine:
    """A loaded model, its cache, and the requests on their way through it.

    Raises:
        ValueError: the config or the checkpoint is wrong; nothing has been loaded.
    """

    def __init__(self, config: EngineConfig, *, progress: bool = False) -> None:
        blueprint = draw_up(config)
        self.config = blueprint.config
        self.plan: CachePlan = blueprint.plan
        self.model = blueprint.model
        self.tokenizer = Tokenizer.from_directory(blueprint.directory)
        self.eos_token_ids = _eos_token_ids(
            read_generation_config(blueprint.directory).get("eos_token_id"),
            self.model.config.eos_token_ids,
        )
        self.pool = load(blueprint, progress=progress)
        self.pages = SequencePages(self.pool)
        self._scheduler = Scheduler(self.config, self.pages)
        self._runner = Runner(
            self.model,
            self.pages,
            self.plan.groups,
            blueprint.device,
            self._token_text,
            self.eos_token_ids,
        )
        self._directory = blueprint.directory
        self._entries: dict[str, _Entry] = {}
        self._num_requests = 0

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What must agree before another engine can go on with pages of this one."""
        return fingerprint(self.plan, self._directory)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence, prompt and output together."""
        assert self.config.max_model_len is not None
        return self.config.max_model_len

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished

    @property
    def num_running(self) -> int:
        """Sequences that hold pages."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for pages."""
        return self._scheduler.num_waiting

    def has_request(self, request_id: str) -> bool:
        """Whether a request of that id is on its way."""
        return request_id in self._entries

    def add_request(self, request: Request) -> None:
        """Puts a request in line.

        Raises:
            ValueError: it can't be served, now or ever; nothing was changed.
        """
        self._check(request)
        seed = request.sampling_params.seed
        if seed is None:
            seed = derive_seed(self.config.seed, self._num_requests)
        sequences = [
            self._sequence(request, index, derive_seed(seed, index))
            for index in range(request.sampling_params.n)
        ]
        self._num_requests += 1
        self._entries[request.request_id] = _Entry(request, sequences)
        for sequence in sequences:
            self._scheduler.add(sequence)

    def step(self) -> list[RequestOutput]:
        """Runs one step and returns the requests that it changed.

        Whatever it raises, nothing is lost: the requests in it start over from their
        tokens at the next step.
        """
        rows = self._scheduler.schedule()
        if not rows:
            return []
        self._note_scheduled(rows)
        try:
            return self._commit(rows, self._runner.run(rows))
        except BaseException:
            self._scheduler.preempt_all(rows)
            raise

    def abort(self, request_id: str) -> None:
        """Drops a request and frees its pages. One that is not there is left alone."""
        entry = self._entries.pop(request_id, None)
        for sequence in entry.sequences if entry else ():
            if sequence.finish_reason is None:
                self._scheduler.remove(sequence)

    def export_request(self, request_id: str) -> RequestInFlight:
        """A copy of a request and of its pages, for `import_request`. It goes on here too.

        Raises:
            ValueError: there is no such request.
        """
        entry = self._entries.get(request_id)
        if entry is None:
            raise ValueError(f"request {request_id!r} is not in the engine")
        sequences = (take_down(sequence, self.pages, self.pool) for sequence in entry.sequences)
        return RequestInFlight(entry.request, tuple(sequences), self.fingerprint)

    def import_request(self, came: RequestInFlight) -> None:
        """Goes on with a request where another engine stood with it.

        Raises:
            ValueError: the other engine's checkpoint or formats differ, or the request can't
                be served here; nothing was changed.
            OutOfPages: there is no room for its pages now; nothing was changed.
        """
        check_fingerprint(self.fingerprint, came.fingerprint)
        self._check(came.request)
        sequences = [self._sequence(came.request, one.index, one.seed) for one in came.sequences]
        try:
            for sequence, one in zip(sequences, came.sequences, strict=True):
                take_up(sequence, one, self.pages, self.pool)
        except BaseException:
            for sequence in sequences:
                if sequence.sequence_id in self.pages:
                    self.pages.free(sequence.sequence_id)
            raise
        self._entries[came.request.request_id] = _Entry(came.request, sequences)
        for sequence in sequences:
            if sequence.finish_reason is None:
                self._scheduler.adopt(sequence)

    def _commit(self, rows: Rows[Row], results: Rows[RowResult]) -> list[RequestOutput]:
        sampled: list[Sequence] = []
        for row, result in zip(rows, results, strict=True):
            if row.sequence.prompt_logprobs is not None:
                row.sequence.prompt_logprobs.extend(result.prompt_logprobs)
            if result.token is not None:
                self._note_token(row.sequence, result)
                sampled.append(row.sequence)
        self._scheduler.commit(rows, [result.token for result in results])
        self._switch_rope(sampled)
        touched = dict.fromkeys(sequence.request.request_id for sequence in sampled)
        return [self._output(request_id) for request_id in touched]

    def _note_token(self, sequence: Sequence, result: RowResult) -> None:
        entry = self._entries[sequence.request.request_id]
        if entry.first_token_time is None:
            entry.first_token_time = time.monotonic()
        if sequence.logprobs is not None and result.logprobs is not None:
            assert result.token is not None
            sequence.logprobs.append(result.logprobs)
            sequence.cumulative_logprob += result.logprobs[result.token].logprob

    def _switch_rope(self, sampled: Iterable[Sequence]) -> None:
        """Lets sequences start over for which other rotary frequencies hold from here on."""
        switch = self.model.rope_switch_length
        for sequence in sampled if switch is not None else ():
            if sequence.finish_reason is None and len(sequence.token_ids) - 1 == switch:
                self._scheduler.preempt(sequence)

    def _output(self, request_id: str) -> RequestOutput:
        entry = self._entries[request_id]
        if entry.finished:
            del self._entries[request_id]
        first = entry.sequences[0]
        return RequestOutput(
            request_id=request_id,
            prompt=entry.request.prompt,
            prompt_token_ids=list(entry.request.prompt_token_ids),
            prompt_logprobs=None if first.prompt_logprobs is None else list(first.prompt_logprobs),
            num_cached_tokens=0,
            cache_note=CACHE_NOTE,
            metrics=_metrics(entry),
            outputs=[sequence.output() for sequence in entry.sequences],
        )

    def _sequence(self, request: Request, index: int, seed: int) -> Sequence:
        most = request.sampling_params.max_tokens
        limit = self.max_model_len
        prompt = request.prompt_token_ids
        return Sequence(
            sequence_id=f"{request.request_id}/{index}",
            request=request,
            index=index,
            seed=seed,
            max_tokens=limit if most is None else min(limit, len(prompt) + most),
            detokenizer=Detokenizer(self.tokenizer, prompt, request.sampling_params),
            eos_token_ids=self.eos_token_ids,
        )

    def _check(self, request: Request) -> None:
        """Refuses what can't be served, naming the thing and what would be right."""
        if request.request_id in self._entries:
            raise ValueError(
                f"request {request.request_id!r} is in the engine already; finish or abort it first"
            )
        check_request(request, self.max_model_len, self.model.config.vocab_size)

    def _token_text(self, token: int) -> str | None:
        return None if self.tokenizer is None else self.tokenizer.token_text(token)

    def _note_scheduled(self, rows: Iterable[Row]) -> None:
        now = time.monotonic()
        for row in rows:
            entry = self._entries[row.sequence.request.request_id]
            if entry.first_scheduled_time is None:
                entry.first_scheduled_time = now


def _eos_token_ids(*sources: int | list[int] | tuple[int, ...] | None) -> tuple[int, ...]:
    """The first source that names any: generation_config.json, then config.json."""
    for source in sources:
        if source is not None:
            return (source,) if isinstance(source, int) else tuple(source)
    return ()


def _metrics(entry: _Entry) -> RequestMetrics:
    return RequestMetrics(
        arrival_time=entry.arrival_time,
        first_scheduled_time=entry.first_scheduled_time,
        first_token_time=entry.first_token_time,
        finished_time=time.monotonic() if entry.finished else None,
        num_preemptions=sum(sequence.num_preemptions for sequence in entry.sequences),
    )
