"""What goes into the engine and what comes out: plain values that pickle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from hybridrt.values import Value, as_tuple

_FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
_StopText = Annotated[str, Field(min_length=1)]
_TokenId = Annotated[int, Field(ge=0)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]


class SamplingParams(Value):
    """How tokens are chosen and when to stop. Names and defaults are vLLM's.

    Attributes:
        n: completions for the prompt.
        temperature: 0 takes the most likely token.
        top_p: keep the smallest set of tokens with at least this probability.
        top_k: keep this many tokens; 0 or -1 keeps all.
        min_p: drop tokens less likely than this share of the likeliest's probability.
        presence_penalty: subtracted once from the logit of a token that was generated.
        frequency_penalty: subtracted as often as the token was generated.
        repetition_penalty: divides positive and multiplies negative logits of tokens
            in the prompt or the output (CTRL, arXiv 1909.05858), from 0.01 to 100.
        seed: makes the draw repeatable, whatever else is in the batch.
        max_tokens: most tokens to generate; `None` goes on to `max_model_len`.
        min_tokens: stop conditions and the end-of-sequence token wait for this many.
        stop: texts that end the output (they are not part of it).
        stop_token_ids: tokens that end the output.
        ignore_eos: go on behind the end-of-sequence token.
        logprobs: that many likeliest tokens, and the chosen one, with each token.
        prompt_logprobs: the same for the tokens of the prompt.
        logit_bias: added to the logits of these token ids, each in [-100, 100].
        skip_special_tokens: leave special tokens out of the text.
    """

    n: int = Field(default=1, ge=1)
    temperature: _FiniteFloat = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    max_tokens: int | None = Field(default=16, ge=1)
    min_tokens: int = Field(default=0, ge=0)
    stop: Annotated[Sequence[_StopText], BeforeValidator(as_tuple)] = ()
    stop_token_ids: Annotated[Sequence[_TokenId], BeforeValidator(as_tuple)] = ()
    ignore_eos: bool = False
    logprobs: int | None = Field(default=None, ge=0)
    prompt_logprobs: int | None = Field(default=None, ge=0)
    logit_bias: (
        dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100, le=100)]] | None
    ) = None
    skip_special_tokens: bool = True

    @model_validator(mode="after")
    def _min_at_most_max(self) -> "SamplingParams":
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens} should be at most max_tokens={self.max_tokens}"
            )
        return self

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, with no draw."""
        return self.temperature == 0

    @property
    def changes_no_logits(self) -> bool:
        """Whether a token is chosen from the model's logits as they are."""
        return not (self.penalises or self.logit_bias or self.min_tokens)

    @property
    def penalises(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
        )


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt on its way into the engine.

    `prompt` is the text it came from, if there was one; `cache_salt` keeps its
    cache apart from that of other tenants.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    prompt: str | None = None
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural log of a token's probability, before temperature and penalties.

    `rank` counts from 1, the likeliest token of the vocabulary.
    """

    logprob: float
    rank: int
    decoded_token: str | None


TokenLogprobs = Mapping[int, Logprob]
"""For one position: the chosen token, and the likeliest, by token id."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of a request's `n` outputs. `finish_reason` is None while it runs.

    `stop_reason` is the stop text or stop token id that ended it, if one did.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    cumulative_logprob: float | None
    finish_reason: str | None
    stop_reason: str | int | None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened, in seconds of `time.monotonic()`; None: not yet."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What is known of a request after a step.

    `cache_note` says why `num_cached_tokens` is what it is; see docs/reuse.md. All outputs of a
    request have the same list of `prompt_token_ids`.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None
    num_cached_tokens: int
    cache_note: str
    metrics: RequestMetrics
    outputs: list[CompletionOutput] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return all(output.finished for output in self.outputs)
