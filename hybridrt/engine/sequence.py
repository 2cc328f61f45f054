"""Sequence: one of a request's outputs on its way through the engine."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Int32

from hybridrt.cache.finder import CacheNote, Match
from hybridrt.cache.prefix_tree import token_bytes
from hybridrt.engine.detokenizer import Detokenizer
from hybridrt.request import CompletionOutput, Request, SamplingParams, TokenLogprobs

FinishReason = Literal["stop", "length"]


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of one output, the prompt's first, and how many of them are in the cache.

    `max_tokens` bounds prompt and output together, as the request's own bounds the
    output; `seed` is this output's own, from which the draw of every token follows.
    `prompt_logprobs` has an entry per prompt token once they are known, None first; None
    altogether if nobody asked. Steps that failed count as preemptions too. `siblings` are the
    request's other outputs, which wait for this one's prompt, to go on behind it with other
    draws. `takes_likeliest` says that every token of it is that of the largest logit.
    """

    sequence_id: str
    request: Request
    index: int
    seed: int
    max_tokens: int
    detokenizer: Detokenizer
    eos_token_ids: tuple[int, ...] = ()
    token_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    num_computed: int = 0
    logprobs: list[TokenLogprobs] | None = field(init=False)
    prompt_logprobs: list[TokenLogprobs | None] | None = field(init=False)
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_preemptions: int = 0
    num_failed_steps: int = 0
    num_cached_tokens: int = 0
    cache_note: CacheNote | None = None
    siblings: "list[Sequence]" = field(default_factory=list)
    takes_likeliest: bool = field(init=False)
    _prompt_data: bytes = field(init=False)
    _stop_tokens: frozenset[int] = field(init=False)
    _least_tokens: int = field(init=False)
    _most_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        self.takes_likeliest = params.greedy and params.changes_no_logits
        self.token_ids = list(self.request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self._prompt_data = token_bytes(self.token_ids)
        self.logprobs = None if params.logprobs is None else []
        self.prompt_logprobs = None if params.prompt_logprobs is None else [None]
        eos = () if params.ignore_eos else self.eos_token_ids
        self._stop_tokens = frozenset((*params.stop_token_ids, *eos))
        self._least_tokens = self.num_prompt_tokens + params.min_tokens
        most = self.max_tokens if params.max_tokens is None else params.max_tokens
        self._most_tokens = min(self.max_tokens, self.num_prompt_tokens + most)

    @property
    def params(self) -> SamplingParams:
        return self.request.sampling_params

    @property
    def token_data(self) -> bytes:
        """All tokens as the prefix cache compares them, which may ask for them at every step."""
        if len(self.token_ids) == self.num_prompt_tokens:
            return self._prompt_data
        return self._prompt_data + token_bytes(self.output_token_ids)

    def token_array(self, start: int, stop: int) -> Int32[np.ndarray, " tokens"]:
        """Tokens `start` to `stop - 1`; of the prompt without a look at each."""
        if stop <= self.num_prompt_tokens:
            return np.frombuffer(self._prompt_data, np.intc)[start:stop]
        return np.array(self.token_ids[start:stop], np.intc)

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

    def note_cached(self, match: Match | None) -> None:
        """Notes what the cache had when the sequence first ran, which is what its output tells."""
        self.cache_note = "disabled" if match is None else match.note
        self.num_cached_tokens = 0 if match is None else match.position

    def begin_behind(self, other: "Sequence") -> None:
        """Takes over what another has computed, whose prompt is the same and over."""
        self.num_computed = other.num_computed
        if other.prompt_logprobs is not None:
            self.prompt_logprobs = [*other.prompt_logprobs]
        self.num_cached_tokens, self.cache_note = other.num_computed, "hit"

    def surely_goes_on(self, token: int | None) -> bool:
        """Whether that token, or None: any that may be drawn, isn't the last.

        As is seen without its text.
        """
        num_tokens = len(self.token_ids) + 1
        if num_tokens >= self._most_tokens or self.params.stop or self.siblings:
            return False
        if num_tokens <= self._least_tokens:
            return True
        return not self._stop_tokens if token is None else token not in self._stop_tokens

    def append(self, token: int) -> None:
        """Takes the next token, its text with it, and finishes if it ends the output."""
        self.token_ids.append(token)
        num_tokens = len(self.token_ids)
        may_stop = num_tokens > self._least_tokens
        if may_stop and token in self._stop_tokens:
            self.finish_reason = "stop"
            self.stop_reason = token if token in self.params.stop_token_ids else None
        else:
            stop = self.detokenizer.append((token,), may_stop)
            if stop is not None:
                self.finish_reason, self.stop_reason = "stop", stop
            elif num_tokens >= self._most_tokens:
                self.finish_reason = "length"
        if self.finish_reason is not None:
            self.detokenizer.finish()

    def forget_lost_tokens(self) -> None:
        """Keeps logprobs of those tokens alone that were taken in."""
        if self.logprobs is not None:
            del self.logprobs[self.num_output_tokens :]
            both = zip(self.logprobs, self.output_token_ids, strict=True)
            self.cumulative_logprob = sum(of[token].logprob for of, token in both)

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


def tree_name(salt: str | None, num_tokens: int, rope_switch_length: int | None) -> str | None:
    """The prefix tree of a sequence of that many tokens.

    What isn't the same is kept apart: tenants, and keys turned by other rotary frequencies.
    """
    if rope_switch_length is None:
        return salt
    return f"{num_tokens > rope_switch_length}/{salt}"
