"""Sequence: one of a request's outputs on its way through the engine."""

from dataclasses import dataclass, field
from typing import Literal

from hybridrt.engine.detokenizer import Detokenizer
from hybridrt.request import CompletionOutput, Request, SamplingParams, TokenLogprobs

FinishReason = Literal["stop", "length"]


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of one output, the prompt's first, and how many of them are in the cache.

    `max_tokens` bounds prompt and output together; `seed` is this output's own, from
    which the draw of every token follows. `prompt_logprobs` has an entry per prompt
    token once they are known, None first; None altogether if nobody asked.
    """

    sequence_id: str
    request: Request
    index: int
    seed: int
    max_tokens: int
    detokenizer: Detokenizer
    token_ids: list[int] = field(init=False)
    num_computed: int = 0
    logprobs: list[TokenLogprobs] | None = field(init=False)
    prompt_logprobs: list[TokenLogprobs | None] | None = field(init=False)
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)
        self.logprobs = None if self.params.logprobs is None else []
        self.prompt_logprobs = None if self.params.prompt_logprobs is None else [None]

    @property
    def params(self) -> SamplingParams:
        return self.request.sampling_params

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def next_prompt_logprob(self) -> int | None:
        """Index of the first prompt token whose logprob is wanted and not known; None: none."""
        if self.prompt_logprobs is None or len(self.prompt_logprobs) >= self.num_prompt_tokens:
            return None
        return len(self.prompt_logprobs)

    def append(self, token: int, eos_token_ids: tuple[int, ...]) -> None:
        """Takes the next token, its text with it, and finishes if it ends the output."""
        self.token_ids.append(token)
        may_stop = self.num_output_tokens > self.params.min_tokens
        if may_stop and self._is_stop_token(token, eos_token_ids):
            explicit = token in self.params.stop_token_ids
            self._finish("stop", token if explicit else None)
            return
        stop = self.detokenizer.append([token], check_stop=may_stop)
        if stop is not None:
            self._finish("stop", stop)
        elif self._is_full():
            self._finish("length", None)

    def output(self) -> CompletionOutput:
        """What is known of this output now."""
        return CompletionOutput(
            index=self.index,
            text=self.detokenizer.text if self.finish_reason else self.detokenizer.streamable_text,
            token_ids=self.output_token_ids,
            logprobs=None if self.logprobs is None else list(self.logprobs),
            cumulative_logprob=None if self.logprobs is None else self.cumulative_logprob,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _is_stop_token(self, token: int, eos_token_ids: tuple[int, ...]) -> bool:
        if token in self.params.stop_token_ids:
            return True
        return token in eos_token_ids and not self.params.ignore_eos

    def _is_full(self) -> bool:
        most = self.params.max_tokens
        return len(self.token_ids) >= self.max_tokens or (
            most is not None and self.num_output_tokens >= most
        )

    def _finish(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        self.finish_reason = reason
        self.stop_reason = stop_reason
        self.detokenizer.finish()
