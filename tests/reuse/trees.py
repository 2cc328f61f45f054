"""Prompts that grow out of each other, and what they give without a prefix cache."""

import functools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

from hybridrt import LLM, SamplingParams
from hybridrt.request import RequestOutput
from tests.harness.engines import LARGEST_ERROR, open_llm
from tests.oracle import BY_NAME

LONGEST = 100
NUM_NEW = 6
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_NEW, ignore_eos=True, logprobs=2)
DRAWN = SamplingParams(temperature=0.9, seed=5, max_tokens=NUM_NEW, ignore_eos=True, logprobs=2)
SCORED = SamplingParams(
    temperature=0.0, max_tokens=NUM_NEW, ignore_eos=True, logprobs=2, prompt_logprobs=0
)
Options = tuple[tuple[str, Any], ...]

KINDS_OF_PARAMS = (GREEDY, GREEDY, DRAWN, SCORED)


@dataclass(frozen=True)
class Growth:
    """A prompt: the first `shared` tokens of an earlier one, its output behind it if `answers`,
    and `more` others. It comes at step `arrives`, and is aborted at step `leaves` if at all.
    """

    parent: int
    shared: int
    more: int
    answers: bool
    params: SamplingParams
    arrives: int
    leaves: int | None


@st.composite
def trees(draw: st.DrawFn, size: int = 7) -> tuple[Growth, ...]:
    """Prompts of which each may come while those that it grows out of still run, or later."""
    growth = st.builds(
        Growth,
        parent=st.integers(0, size),
        shared=st.one_of(st.integers(0, LONGEST), st.sampled_from([16, 31, 32, 33])),
        more=st.sampled_from([0, 0, 1, 2, 9, 30]),
        answers=st.booleans(),
        params=st.sampled_from(KINDS_OF_PARAMS),
        arrives=st.one_of(st.integers(0, 30), st.just(0)),
        leaves=st.one_of(st.none(), st.none(), st.integers(0, 40)),
    )
    return tuple(draw(st.lists(growth, min_size=3, max_size=size)))


def plain(name: str, **options: Any) -> LLM:
    """The row without a prefix cache."""
    return _plain(name, tuple(sorted(options.items())))


@functools.cache
def _plain(name: str, options: Options) -> LLM:
    choices = {"max_model_len": LONGEST + NUM_NEW, "enable_prefix_caching": False, **dict(options)}
    return open_llm(name, **choices)


_known: dict[tuple[str, Options, tuple[int, ...], SamplingParams], RequestOutput] = {}


def expected(
    name: str, prompt: Sequence[int], params: SamplingParams, **options: Any
) -> RequestOutput:
    """What a prompt gives without a prefix cache: alone, if it isn't known already."""
    expect(name, [(prompt, params)], **options)
    return _known[name, tuple(sorted(options.items())), tuple(prompt), params]


def expect(
    name: str, wanted: Iterable[tuple[Sequence[int], SamplingParams]], **options: Any
) -> None:
    """Computes what prompts give in one batch, in a fraction of the steps, for `expected`.

    That each gives there what it gives alone is tests/models/test_invariances.py's to show.
    """
    chosen = tuple(sorted(options.items()))
    keys = dict.fromkeys((name, chosen, tuple(prompt), params) for prompt, params in wanted)
    missing = [key for key in keys if key not in _known]
    if not missing:
        return
    outputs = plain(name, **options).generate(
        [list(prompt) for *_, prompt, _ in missing], [params for *_, params in missing]
    )
    _known.update(zip(missing, outputs, strict=True))


def grow(name: str, tree: Sequence[Growth], **options: Any) -> Iterator[tuple[Growth, list[int]]]:
    """The prompts of a tree, in the vocabulary of the row."""
    draw = Random(zlib.crc32(name.encode()))
    vocab = BY_NAME[name].config["vocab_size"]
    grown = [[draw.randrange(vocab) for _ in range(40)]]
    for growth in tree:
        parent = grown[growth.parent % len(grown)]
        prompt = parent[: growth.shared] or parent[:1]
        if growth.answers and len(prompt) + NUM_NEW <= LONGEST:
            answer = expected(name, prompt, GREEDY, **options).outputs[0].token_ids
            prompt = [*prompt, *answer]
        prompt = [*prompt, *(draw.randrange(vocab) for _ in range(growth.more))][:LONGEST]
        grown.append(prompt)
        yield growth, prompt


def assert_same(given: RequestOutput, cold: RequestOutput, error: float = LARGEST_ERROR) -> None:
    """The same tokens and logprobs as without the prefix cache.

    Where two tokens are nearly tied either may come, and what follows is another text.
    """
    ours, theirs = given.outputs[0], cold.outputs[0]
    assert ours.logprobs is not None and theirs.logprobs is not None
    for i, (token, right) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=True)):
        for entry in ours.logprobs[i].keys() & theirs.logprobs[i].keys():
            assert abs(ours.logprobs[i][entry].logprob - theirs.logprobs[i][entry].logprob) <= error
        if token != right:
            first, second = sorted(e.logprob for e in theirs.logprobs[i].values())[-2:]
            assert abs(second - first) <= 2 * error, (i, ours.token_ids, theirs.token_ids)
            return
    assert (given.prompt_logprobs is None) == (cold.prompt_logprobs is None)
    for our, their in zip(given.prompt_logprobs or (), cold.prompt_logprobs or (), strict=True):
        for entry in (our or {}).keys() & (their or {}).keys():
            assert our is not None and their is not None
            assert abs(our[entry].logprob - their[entry].logprob) <= error


def largest_error(given: RequestOutput, cold: RequestOutput) -> float:
    """Of a log-probability of the output, in nats, as far as the tokens are the same."""
    ours, theirs = given.outputs[0], cold.outputs[0]
    assert ours.logprobs is not None and theirs.logprobs is not None
    largest = 0.0
    for i, pair in enumerate(zip(ours.token_ids, theirs.token_ids, strict=True)):
        our, their = ours.logprobs[i], theirs.logprobs[i]
        errors = [abs(our[t].logprob - their[t].logprob) for t in our.keys() & their.keys()]
        largest = max([largest, *errors])
        if pair[0] != pair[1]:
            break
    return largest
