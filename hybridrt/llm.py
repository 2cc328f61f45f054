"""LLM: the front door. Load a checkpoint, generate, chat, stream, or step by hand."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hybridrt.cache.cache_map import CacheMap, cache_map
from hybridrt.cache.plan import CachePlan
from hybridrt.cache.regions import CacheRegions
from hybridrt.config import EngineConfig
from hybridrt.engine.engine import Engine
from hybridrt.engine.handover import RequestInFlight
from hybridrt.engine.held import Held
from hybridrt.prompt import Prompt, as_list, parse
from hybridrt.request import Request, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from hybridrt.session import Session


class LLM:
    """A checkpoint, loaded, with a cache to run it in.

    `options` are the fields of `EngineConfig`. With `progress`, loading and long batches
    show how far they are, on standard error.

    Raises:
        ValueError: an option or the checkpoint is wrong; the message names it.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, progress: bool = False, **options: Any
    ) -> None:
        path: Any = os.fspath(model) if isinstance(model, os.PathLike) else model
        self.config = EngineConfig(model=path, **options)
        self.engine = Engine(self.config, progress=progress)
        self._progress = progress
        self._num_requests = 0
        # Who steps the engine gets everybody's outputs. Those of a `generate` or `stream`
        # go to its inbox; of the others the latest waits here for the next `step`.
        self._inboxes: dict[str, list[RequestOutput]] = {}
        self._unread: dict[str, RequestOutput] = {}
        if self.config.publish_stats:
            from hybridrt.introspection.publish import publish

            publish(self.engine)

    @property
    def plan(self) -> CachePlan:
        """Sizes of the cache, per group and per layer."""
        return self.engine.plan

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence, prompt and output together."""
        return self.engine.max_model_len

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` has something to do, or to tell."""
        return self.engine.has_unfinished or bool(self._unread)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Completes the prompts, all at once, and returns them in their order.

        Raises:
            ValueError: a prompt or its parameters are wrong; then none of them runs.
        """
        prompts = as_list(prompts)
        params = _one_each(sampling_params, len(prompts))
        inbox: list[RequestOutput] = []
        added: list[str] = []
        try:
            for prompt, param in zip(prompts, params, strict=True):
                added.append(self.add_request(prompt, param))
                self._inboxes[added[-1]] = inbox
            done = self._finish(len(added), inbox)
        finally:
            for request_id in added:
                self.abort(request_id)
        return [done[request_id] for request_id in added]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several, through the checkpoint's chat template.

        A message is `{"role": ..., "content": ...}`.
        """
        several = bool(messages) and isinstance(messages[0], list | tuple)
        conversations: Any = messages if several else [messages]
        prompts = [self.chat_prompt(turns, **template_options) for turns in conversations]
        return self.generate(prompts, sampling_params)

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], **template_options: Any
    ) -> dict[str, Any]:
        """A conversation as a prompt for `generate` or `stream`."""
        tokenizer = self._need_tokenizer("chat")
        if not messages or not all(isinstance(message, Mapping) for message in messages):
            raise ValueError(f"messages={messages!r} should be a list of dicts with role, content")
        text = tokenizer.apply_chat_template([dict(m) for m in messages], **template_options)
        # The template writes the special tokens itself.
        ids = tokenizer.encode(text, add_special_tokens=False)
        return {"prompt": text, "prompt_token_ids": ids}

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Yields what is known of one prompt's output after every token of it.

        The text only grows: what may yet become part of a stop string or of a character
        of several bytes is held back. Closing the iterator aborts the request.
        """
        request_id = self.add_request(prompt, sampling_params)
        self._inboxes[request_id] = []
        return self._stream(request_id)

    def add_request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> str:
        """Puts a prompt in line for `step`; returns its request id."""
        if request_id is None:
            request_id = self._new_request_id()
        elif not isinstance(request_id, str):
            raise ValueError(f"request_id={request_id!r} should be text")
        request = self._request(request_id, prompt, sampling_params or SamplingParams())
        self.engine.add_request(request)
        return request_id

    def step(self) -> list[RequestOutput]:
        """Runs one step; returns the requests that it gave a token."""
        self._advance()
        outputs = list(self._unread.values())
        self._unread.clear()
        return outputs

    def abort(self, request_id: str) -> None:
        """Drops a request, at any time. One that is not there is left alone."""
        self.engine.abort(request_id)
        self._unread.pop(request_id, None)
        self._inboxes.pop(request_id, None)

    def session(self, prompt: Prompt | None = None, cache_salt: str | None = None) -> "Session":
        """Opens a session, with a prompt's tokens if there is one; see `Session`.

        Raises:
            ValueError: the prompt is wrong, or brings another `cache_salt`.
        """
        from hybridrt.session import Session

        return Session.open(self.engine, self._run_held, prompt, cache_salt)

    def load_session(self, path: str | os.PathLike[str]) -> "Session":
        """Opens a session from a file that `Session.save` wrote, here or elsewhere.

        Raises:
            ValueError: the file was cut off or changed, or comes from another checkpoint or
                other formats; says which. Nothing was loaded.
            OSError: the file can't be read.
            OutOfPages: there is no room for its pages now.
        """
        from hybridrt.session import Session

        return Session.load(path, self.engine, self._run_held)

    def stats(self) -> dict[str, Any]:
        """Counters of reuse and the bytes of the pool, as plain values (docs/reuse.md).

        `total` counts from the start and `interval` since the last call: sequences, their
        prompts' tokens, those that came from the cache, the share of these, and how often
        each `cache_note`. `bytes` are those in use, cached and free now, group by group;
        `cache` has the pages and checkpoints that are kept, and how many were dropped.
        """
        return self.engine.stats()

    def stats_rows(self) -> list[dict[str, Any]]:
        """What the engine did, as rows over time: at most two a second while it works.

        `pandas.DataFrame(llm.stats_rows())` takes them; docs/introspection.md names the columns.
        The last 4,096 are kept.
        """
        return self.engine.stats_recorder.rows

    def cache_map(self) -> CacheMap:
        """Who owns each slab and page of the pool now: a snapshot, which prints as a table.

        It takes less than a millisecond, so it can be asked for at every step.
        """
        return cache_map(self.engine.pool, self.engine.pages)

    def cache_regions(self) -> CacheRegions:
        """The pool as one region of memory, and the bytes in it that hold given pages."""
        pool = self.engine.pool
        return CacheRegions(
            address=pool.bytes.data_ptr(),
            num_bytes=self.plan.pool_bytes,
            device=pool.bytes.device,
            plan=self.plan,
        )

    def export_request(self, request_id: str) -> RequestInFlight:
        """A copy of a request on its way, with all that the cache holds of it.

        It is a plain value that pickles, for `import_request` of an engine with the same
        checkpoint and formats, whatever the size of its cache. The request goes on here too
        until it is aborted.

        Raises:
            ValueError: there is no such request.
        """
        return self.engine.export_request(request_id)

    def import_request(self, request: RequestInFlight) -> str:
        """Goes on with a request where another engine stood with it; returns its id.

        Raises:
            ValueError: that engine's checkpoint or formats differ from those here.
            OutOfPages: there is no room for its pages now.
        """
        self.engine.import_request(request)
        return request.request.request_id

    def _run_held(self, held: Held, params: SamplingParams | None) -> Iterator[RequestOutput]:
        request_id = self._new_request_id()
        first = self.engine.run_held(held, request_id, params)
        self._inboxes[request_id] = [] if first is None else [first]
        return self._stream(request_id)

    def _advance(self) -> None:
        """One step, whose outputs go to those who wait for them."""
        for output in self.engine.step():
            inbox = self._inboxes.get(output.request_id)
            if inbox is None:
                self._unread[output.request_id] = output
            else:
                inbox.append(output)

    def _stream(self, request_id: str) -> Iterator[RequestOutput]:
        try:
            while request_id in self._inboxes:  # until it is aborted
                inbox = self._inboxes[request_id]
                if not inbox:
                    if not self.engine.has_request(request_id):  # its session was closed
                        return
                    self._advance()
                    continue
                output = inbox.pop(0)
                yield output
                if output.finished:
                    return
        finally:
            self.abort(request_id)

    def _finish(self, count: int, inbox: list[RequestOutput]) -> dict[str, RequestOutput]:
        """Steps until so many are finished. Others that run beside them go on too."""
        from hybridrt.progress import request_progress

        done: dict[str, RequestOutput] = {}
        progress = request_progress(count, shown=self._progress)
        with progress as advance, self.engine.in_a_row():
            while len(done) < count:
                self._advance()
                for output in inbox:
                    advance(output)
                    if output.finished:
                        done[output.request_id] = output
                inbox.clear()
        return done

    def _new_request_id(self) -> str:
        while True:
            request_id = f"request-{self._num_requests}"
            self._num_requests += 1
            if not self.engine.has_request(request_id):
                return request_id

    def _request(self, request_id: str, prompt: Prompt, params: SamplingParams) -> Request:
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params={params!r} should be a SamplingParams")
        parsed = parse(prompt)
        ids = parsed.token_ids
        if ids is None:
            ids = tuple(self._need_tokenizer("a text prompt").encode(parsed.text))
        return Request(request_id, ids, params, parsed.text, parsed.cache_salt)

    def _need_tokenizer(self, what: str) -> Any:
        if self.engine.tokenizer is None:
            raise ValueError(
                f"{what} needs a tokenizer, and {self.config.model!r} has no tokenizer.json; "
                f"give token ids instead"
            )
        return self.engine.tokenizer


def _one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence):
        raise ValueError(f"sampling_params={params!r} should be a SamplingParams or a list")
    if len(params) != count:
        raise ValueError(f"sampling_params has {len(params)} entries for {count} prompts")
    return list(params)
