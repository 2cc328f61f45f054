"""LLM: the front door. Load a checkpoint, generate, chat, stream, or step by hand."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hybridrt.cache.plan import CachePlan
from hybridrt.config import EngineConfig
from hybridrt.engine.engine import Engine
from hybridrt.request import Request, RequestOutput, SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`; the dicts may have a
`cache_salt`."""


class LLM:
    """A checkpoint, loaded, with a cache to run it in.

    `options` are the fields of `EngineConfig`. With `progress`, loading and long batches
    show how far they are, on standard error.

    Raises:
        ValueError: an option or the checkpoint is wrong; the message names it.
    """

    def __init__(self, model: str, *, progress: bool = False, **options: Any) -> None:
        self.config = EngineConfig(model=str(model), **options)
        self.engine = Engine(self.config, progress=progress)
        self._progress = progress
        self._num_requests = 0

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
        """Whether `step` has something to do."""
        return self.engine.has_unfinished

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Completes the prompts, all at once, and returns them in their order.

        Raises:
            ValueError: a prompt or its parameters are wrong; then none of them runs.
        """
        prompts = _as_list(prompts)
        params = _one_each(sampling_params, len(prompts))
        added: list[str] = []
        try:
            for prompt, param in zip(prompts, params, strict=True):
                added.append(self.add_request(prompt, param))
            return self._finish(added)
        except BaseException:
            for request_id in added:
                self.abort(request_id)
            raise

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several, through the checkpoint's chat template.

        A message is `{"role": ..., "content": ...}`.
        """
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations: Any = messages if several else [messages]
        prompts = [self.chat_prompt(turns, **template_options) for turns in conversations]
        return self.generate(prompts, sampling_params)

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], **template_options: Any
    ) -> dict[str, Any]:
        """A conversation as a prompt for `generate` or `stream`."""
        tokenizer = self._need_tokenizer("chat")
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
        request_id = self.add_request(prompt, sampling_params or SamplingParams())
        return self._stream(request_id)

    def add_request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> str:
        """Puts a prompt in line for `step`; returns its request id."""
        if request_id is None:
            request_id = f"request-{self._num_requests}"
        request = self._request(request_id, prompt, sampling_params or SamplingParams())
        self.engine.add_request(request)
        self._num_requests += 1
        return request_id

    def step(self) -> list[RequestOutput]:
        """Runs one step; returns the requests that it gave a token."""
        return self.engine.step()

    def abort(self, request_id: str) -> None:
        """Drops a request, at any time."""
        self.engine.abort(request_id)

    def _stream(self, request_id: str) -> Iterator[RequestOutput]:
        finished = False
        try:
            while not finished:
                for output in self.step():
                    if output.request_id == request_id:
                        finished = output.finished
                        yield output
        finally:
            self.abort(request_id)

    def _finish(self, request_ids: Sequence[str]) -> list[RequestOutput]:
        """Steps until these are finished. Others that run beside them go on too."""
        from hybridrt.progress import request_progress

        done: dict[str, RequestOutput] = {}
        with request_progress(len(request_ids), shown=self._progress) as advance:
            while len(done) < len(request_ids):
                for output in self.step():
                    if output.finished and output.request_id in request_ids:
                        done[output.request_id] = output
                        advance(output)
        return [done[request_id] for request_id in request_ids]

    def _request(self, request_id: str, prompt: Prompt, params: SamplingParams) -> Request:
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params={params!r} should be a SamplingParams")
        fields = _prompt_fields(prompt)
        text, ids = fields.get("prompt"), fields.get("prompt_token_ids")
        if ids is None:
            ids = self._need_tokenizer("a text prompt").encode(text)
        return Request(request_id, _token_ids(ids), params, text, fields.get("cache_salt"))

    def _need_tokenizer(self, what: str) -> Any:
        if self.engine.tokenizer is None:
            raise ValueError(
                f"{what} needs a tokenizer, and {self.config.model!r} has no tokenizer.json; "
                f"give token ids instead"
            )
        return self.engine.tokenizer


def _as_list(prompts: Any) -> list[Any]:
    """One prompt, or several, as a list."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    items = list(prompts)
    return [items] if items and isinstance(items[0], int) else items


def _one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"sampling_params has {len(params)} entries for {count} prompts")
    return list(params)


def _prompt_fields(prompt: Any) -> Mapping[str, Any]:
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if not isinstance(prompt, Mapping):
        return {"prompt_token_ids": prompt}
    unknown = prompt.keys() - {"prompt", "prompt_token_ids", "cache_salt"}
    if unknown or not prompt.keys() & {"prompt", "prompt_token_ids"}:
        raise ValueError(
            f"prompt has the keys {sorted(prompt)}; it should have 'prompt' or "
            f"'prompt_token_ids', and may have 'cache_salt'"
        )
    return prompt


def _token_ids(ids: Any) -> tuple[int, ...]:
    values = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    wrong = next((v for v in values if not isinstance(v, int) or isinstance(v, bool)), None)
    if wrong is not None:
        raise ValueError(f"prompt_token_ids has {wrong!r}; token ids should be integers")
    return tuple(values)
