"""The engine: `schedule -> run -> commit`, one step at a time."""

import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from hybridrt.cache.plan import CachePlan
from hybridrt.cache.prefix import make_prefix_cache
from hybridrt.cache.sequence_pages import SequencePages
from hybridrt.cache.slabs import OutOfPages
from hybridrt.config import EngineConfig
from hybridrt.engine.check_request import check_request
from hybridrt.engine.checkpoint import read_generation_config
from hybridrt.engine.detokenizer import Detokenizer
from hybridrt.engine.entry import Entry
from hybridrt.engine.fast_decode import fast_decode
from hybridrt.engine.handover import (
    Fingerprint,
    RequestInFlight,
    check_fingerprint,
    fingerprint,
    take_down,
    take_up,
)
from hybridrt.engine.held import Held, HeldRun, HeldSequences
from hybridrt.engine.holding_scheduler import HoldingScheduler
from hybridrt.engine.interrupts import Interrupts
from hybridrt.engine.loading import draw_up, load
from hybridrt.engine.memory import clear_ahead, keep_freed_memory
from hybridrt.engine.recorder import Recorder
from hybridrt.engine.runner import Draw, Results, RowResult, Runner
from hybridrt.engine.sampler import derive_seed
from hybridrt.engine.scheduler import Row
from hybridrt.engine.sequence import Sequence
from hybridrt.engine.stats import pool_data
from hybridrt.engine.stats_rows import StatsRecorder
from hybridrt.engine.tokenizer import Tokenizer
from hybridrt.request import Request, RequestOutput, SamplingParams

AnySequence = TypeVar("AnySequence", bound=Sequence)

_COMPUTE = SamplingParams(temperature=0.0, max_tokens=1)


class _Launched(NamedTuple):
    """A step that the device is at, or has done."""

    rows: list[Row]
    results: Results[list[RowResult]]


Wait = Callable[[list[Row], Results[list[RowResult]]], list[RowResult]]
"""Waits for what a launched step gives."""


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
        if blueprint.device.type == "cpu":
            keep_freed_memory()
            clear_ahead(self.pool.bytes)
        self.pages = SequencePages(self.pool, make_prefix_cache(self.pool, self.config))
        switch = self.model.rope_switch_length
        self._scheduler = HoldingScheduler(self.config, self.pages, switch)
        self.held = HeldSequences(self.pages, self.pool, switch)
        self.stats_recorder = StatsRecorder(self._scheduler, self.pool, self.pages, self.held)
        self._runner = Runner(
            self.model,
            self.pages,
            self.plan.groups,
            blueprint.device,
            self._token_text,
            self.eos_token_ids,
            fast_decode(
                self.config, self.model, self.plan.groups, blueprint.device, progress=progress
            ),
        )
        self._directory = blueprint.directory
        self._interrupts = Interrupts()
        self._in_a_row = False
        self._launched: _Launched | None = None
        self._entries: dict[str, Entry] = {}
        self._unreported: list[str] = []  # finished requests that a step failed to return
        self._num_requests = 0

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What must agree before another engine can go on with pages of this one."""
        groups = {f"group {group.name}": group.layers for group in self.plan.groups}
        layout: dict[str, Any] = {"kv_layout": self.config.kv_layout}
        if self.config.quantization is not None:
            layout["quantization"] = self.config.quantization
        return {**fingerprint(self.plan, self._directory), **groups, **layout}

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence, prompt and output together."""
        assert self.config.max_model_len is not None
        return self.config.max_model_len

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished or bool(self._unreported)

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
        seed = self._seed(request)
        sequences = [
            self._sequence(request, index, derive_seed(seed, index))
            for index in range(request.sampling_params.n)
        ]
        self._num_requests += 1
        self._entries[request.request_id] = Entry(request, sequences)
        first, *first.siblings = sequences
        self._scheduler.add(first)

    def run_held(
        self, held: Held, request_id: str, params: SamplingParams | None = None
    ) -> RequestOutput | None:
        """Computes what is not yet computed of a held sequence, and with `params` generates.

        The run is a request of that id, for `step` and `abort`. Where the logits behind the last
        token are known, the first new token needs no step: then its output is returned.

        Raises:
            ValueError: the parameters can't be served; nothing was changed.
        """
        token_ids = tuple(held.token_ids)
        request = Request(request_id, token_ids, params or _COMPUTE, cache_salt=held.cache_salt)
        if params is not None:
            self._check(request)
        run = self._sequence(request, 0, derive_seed(self._seed(request), 0), HeldRun)
        run.sequence_id, run.computes_only = held.name, params is None
        self._num_requests += params is not None
        output: RequestOutput | None = None
        try:
            with self.repairing():
                self.held.begin(held, run)
                self._entries[request_id] = Entry(request, [run])
                if params is not None and held.complete:
                    output = self._begin_with_token(run)
                else:
                    self._scheduler.adopt(run)
        except BaseException:
            self._entries.pop(request_id, None)
            held.run = None
            raise
        if output is not None and output.finished:
            del self._entries[request_id]
        return output

    def step(self) -> list[RequestOutput]:
        """Runs one step and returns the requests that it changed.

        Whatever it raises, nothing is lost: the requests in it start over from their
        tokens at the next step. Ctrl-C waits for the step's end; pressed again it does not.

        Raises:
            OutOfPages: sessions hold so many pages that none of the requests finds room.
        """
        if not self._in_a_row:
            self._runner.look_again()
        if self._unreported:
            outputs = self._outputs(name for name in self._unreported if name in self._entries)
            self._unreported = []
        else:
            try:
                try:
                    with self._interrupts.held():
                        outputs = self._advance()
                finally:
                    self._end_lost()
            except BaseException:
                self._unreported = [name for name, entry in self._entries.items() if entry.finished]
                raise
        for output in outputs:
            if output.finished:
                del self._entries[output.request_id]
        return outputs

    @contextmanager
    def in_a_row(self) -> Iterator[None]:
        """For steps between which nobody else's code runs.

        So nothing replaces a part of the model, and one look at all of them serves many steps.
        """
        before, self._in_a_row = self._in_a_row, True
        self._runner.look_again()
        try:
            with self._interrupts.handled():
                yield
        finally:
            self._in_a_row = before
            if not before:
                self._catch_up()

    def _end_lost(self) -> None:
        """Ends the runs of sessions whose pages are gone and can't be computed again."""
        for run in self._scheduler.take_lost():
            self._settle(run)
            self._entries.pop(run.request.request_id, None)

    def _advance(self) -> list[RequestOutput]:
        if self._launched is not None:
            names = self._finish_launched(self._wait_and_begin)
            self._launch_ahead()
            return self._outputs(names)
        rows = self._schedule()
        if not rows and not self._scheduler.has_unfinished:
            return []
        if not rows or self._scheduler.goes_round(rows):
            self._scheduler.preempt_all(rows)
            raise OutOfPages(self.held.explain_no_room(self.num_running + self.num_waiting))
        self._note_scheduled(rows)
        names = self._finish(rows, lambda: self._run(rows))
        if all(row.is_decode for row in rows):
            self._launch_ahead()
        return self._outputs(names)

    def _schedule(self) -> list[Row]:
        try:
            return self._scheduler.schedule()
        except BaseException:
            self._start_over()
            raise

    def _finish(self, rows: list[Row], run: Callable[[], Rows[RowResult]]) -> list[str]:
        """Commits what a step gives. Returns the requests that it gave a token."""
        try:
            results = run()
        except BaseException:
            self._runner.forget_begun()
            self._scheduler.preempt_all(rows)
            raise
        try:
            names = self._commit(rows, results)
        except BaseException:
            self._start_over()
            raise
        self.stats_recorder.note_step()
        return names

    def _launch_ahead(self) -> None:
        """Launches the next step, so that the device is at work while outputs are made.

        One of decodes alone, in which nobody else's code runs, nor before it is committed.
        """
        if not self._may_launch_ahead:
            return
        rows = self._schedule()
        if not rows:
            return
        self._note_scheduled(rows)
        try:
            self._launched = _Launched(rows, self._runner.launch(rows))
        except BaseException:
            self._scheduler.preempt_all(rows)
            raise

    @property
    def _may_launch_ahead(self) -> bool:
        if not (self._in_a_row and self._runner.launches_ahead):
            return False
        return not self._scheduler.num_waiting and self._scheduler.recorder is None

    def _wait_and_begin(
        self, rows: list[Row], results: Results[list[RowResult]]
    ) -> list[RowResult]:
        """The results; meanwhile the device goes on, or while they are committed.

        Only if it is certain which step is next: what one does to states can't be taken back.
        """
        begins = self._may_launch_ahead and self.model.rope_switch_length is None
        if begins and self._scheduler.all_go_on(rows, None) and self._runner.begin_next(None):
            return results()
        found = results()
        tokens = [result.token for result in found if result.token is not None]
        if begins and len(tokens) == len(rows) and self._scheduler.all_go_on(rows, tokens):
            self._runner.begin_next(tokens)
        return found

    def _catch_up(self) -> None:
        """Commits what was launched, so that the cache holds what is known of the sequences."""
        if self._launched is not None:
            with self._interrupts.held():
                self._unreported += self._finish_launched()

    def _finish_launched(self, wait: Wait | None = None) -> list[str]:
        launched, self._launched = self._launched, None
        assert launched is not None
        rows, results = launched
        return self._finish(rows, results if wait is None else lambda: wait(rows, results))

    def _run(self, rows: list[Row]) -> Rows[RowResult]:
        recorder = self._scheduler.recorder
        if recorder is None or all(
            row.sequence.sequence_id != recorder.sequence_id for row in rows
        ):
            return self._runner.run(rows)
        return recorder.run(rows, self._runner.run_eagerly)

    @contextmanager
    def recording(self, recorder: Recorder) -> Iterator[None]:
        """Lets a recorder look on while a held sequence is computed.

        Its tokens are all computed, whatever the prefix cache has of them.

        Raises:
            RuntimeError: another is looking on.
        """
        if self._scheduler.recorder is not None:
            raise RuntimeError("a sequence is recorded already; one at a time")
        self._scheduler.recorder = recorder
        try:
            yield
        finally:
            self._scheduler.recorder = None

    def stats(self) -> dict[str, Any]:
        """What was reused, in all and since this was last asked, and what the pool holds now."""
        return self._scheduler.stats.take() | pool_data(self.pool, self.pages.prefix)

    def abort(self, request_id: str) -> None:
        """Drops a request and frees its pages. One that is not there is left alone."""
        self._catch_up()
        entry = self._entries.get(request_id)
        if entry is None:
            return
        with self.repairing():
            for sequence in entry.sequences:
                if sequence.finish_reason is None:
                    self._scheduler.remove(sequence)
                    self._settle(sequence)
        del self._entries[request_id]
        self.stats_recorder.update()

    @contextmanager
    def repairing(self) -> Iterator[None]:
        """For what changes the cache between steps: if it breaks off, everything starts over.

        A `ValueError` or `OutOfPages` says that nothing was changed.
        """
        try:
            yield
        except (ValueError, OutOfPages):
            raise
        except BaseException:
            self._start_over()
            raise

    def export_request(self, request_id: str) -> RequestInFlight:
        """A copy of a request and of its pages, for `import_request`. It goes on here too.

        Raises:
            ValueError: there is no such request.
        """
        self._catch_up()
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
                take_up(sequence, one, self.pages, self.pool, self.model.rope_switch_length)
        except BaseException:
            for sequence in sequences:
                if sequence.sequence_id in self.pages:
                    self.pages.free(sequence.sequence_id)
            raise
        self._entries[came.request.request_id] = Entry(came.request, sequences)
        for sequence in sequences:
            if sequence.finish_reason is None:
                self._scheduler.adopt(sequence)

    def _start_over(self) -> None:
        """After something was broken off halfway, of which nobody knows how far it came.

        All pages are given back, and every sequence is computed again from its tokens.
        """
        self._launched = None
        self._runner.forget_begun()
        self.pages.reset()
        self.held.lose_pages()
        for sequence in self._scheduler.start_over():
            self._settle(sequence)
        for entry in self._entries.values():
            for sequence in entry.sequences:
                sequence.forget_lost_tokens()

    def _commit(self, rows: Rows[Row], results: Rows[RowResult]) -> list[str]:
        """Gives sequences their tokens. Returns the requests that got any."""
        sampled: list[Sequence] = []
        sibling_tokens: dict[str, list[int]] = {}
        for row, result in zip(rows, results, strict=True):
            sequence = row.sequence
            if sequence.prompt_logprobs is not None:
                sequence.prompt_logprobs.extend(result.prompt_logprobs)
            if result.token is not None:
                self._note_token(sequence, result)
                sampled.append(sequence)
            if result.siblings:
                sibling_tokens[sequence.sequence_id] = [one.token for one in result.siblings]
                for sibling, draw in zip(sequence.siblings, result.siblings, strict=True):
                    self._note_token(sibling, draw)
                    sampled.append(sibling)
        self.stats_recorder.note_generated(len(sampled))
        tokens = [result.token for result in results]
        for sequence in self._scheduler.commit(rows, tokens, sibling_tokens):
            self._settle(sequence)
        for sequence in sampled:
            if not sequence.num_output_tokens:  # a sibling that found no room, and waits
                sequence.forget_lost_tokens()
        if self.model.rope_switch_length is not None:
            self._switch_rope(sequence for sequence in sampled if sequence.num_output_tokens)
        return [sequence.request.request_id for sequence in sampled]

    def _note_token(self, sequence: Sequence, result: RowResult | Draw) -> None:
        self._entries[sequence.request.request_id].note_token()
        if sequence.logprobs is not None and result.logprobs is not None:
            assert result.token is not None
            sequence.logprobs.append(result.logprobs)
            sequence.cumulative_logprob += result.logprobs[result.token].logprob

    def _switch_rope(self, sampled: Iterable[Sequence]) -> None:
        """Lets sequences start over for which other rotary frequencies hold from here on."""
        for sequence in sampled:
            if sequence.finish_reason is None and self._passes_switch(sequence):
                self._scheduler.preempt(sequence)

    def _passes_switch(self, sequence: Sequence) -> bool:
        """Whether its last token is the first for which other rotary frequencies hold."""
        return len(sequence.token_ids) - 1 == self.model.rope_switch_length

    def _begin_with_token(self, run: HeldRun) -> RequestOutput:
        """The first token of a run whose logits are known, and the run into line."""
        assert run.known_logits is not None
        row = Row(run, run.num_computed, run.num_computed)
        self._note_scheduled([row])
        result = self._runner.sample_from(run.known_logits, row)
        assert result.token is not None
        self._note_token(run, result)
        self.stats_recorder.note_generated(1)
        run.append(result.token)
        if run.finish_reason is not None:
            self._settle(run)
        else:
            if self._passes_switch(run):
                self.pages.free(run.sequence_id)
                run.num_computed = 0
            self._scheduler.adopt(run)
        return self._outputs([run.request.request_id])[0]

    def _settle(self, sequence: Sequence) -> None:
        """A held sequence takes over what its run has come to."""
        if isinstance(sequence, HeldRun):
            self.held.settle(sequence)

    def _outputs(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        return [self._entries[request_id].output() for request_id in dict.fromkeys(request_ids)]

    def _seed(self, request: Request) -> int:
        seed = request.sampling_params.seed
        return derive_seed(self.config.seed, self._num_requests) if seed is None else seed

    def _sequence(
        self, request: Request, index: int, seed: int, cls: type[AnySequence] = Sequence
    ) -> AnySequence:
        most = request.sampling_params.max_tokens
        limit = self.max_model_len
        prompt = request.prompt_token_ids
        return cls(
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

    def _note_scheduled(self, rows: Rows[Row]) -> None:
        now = time.monotonic()
        self.stats_recorder.note_rows(rows, now)
        for row in rows:
            self._entries[row.sequence.request.request_id].note_scheduled(now)


def _eos_token_ids(*sources: int | list[int] | tuple[int, ...] | None) -> tuple[int, ...]:
    """The first source that names any: generation_config.json, then config.json."""
    for source in sources:
        if source is not None:
            return (source,) if isinstance(source, int) else tuple(source)
    return ()
