"""A sequence ends where its parameters say, with the reason that holds."""

import dataclasses
import pickle
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from hybridrt.engine.detokenizer import Detokenizer
from hybridrt.engine.sequence import Sequence
from hybridrt.engine.tokenizer import Tokenizer
from hybridrt.request import Request, SamplingParams
from tests.engine.small import EOS, small_checkpoint

PROMPT = b"prompt "


@cache
def tokenizer() -> Tokenizer | None:
    return Tokenizer.from_directory(small_checkpoint())


def sequence(*, limit: int = 1000, **params: Any) -> Sequence:
    request = Request("r", tuple(PROMPT), SamplingParams(**{"max_tokens": None, **params}))
    detokenizer = Detokenizer(tokenizer(), PROMPT, request.sampling_params)
    return Sequence("r/0", request, 0, 0, limit, detokenizer, (EOS,))


def run(s: Sequence, tokens: Iterable[int]) -> tuple[str, str | None, str | int | None]:
    """Gives tokens until it is finished: its text, finish reason and stop reason."""
    for token in tokens:
        assert s.finish_reason is None
        s.append(token)
        if s.finish_reason:
            break
    output = s.output()
    return output.text, output.finish_reason, output.stop_reason


# What ends an output that would go on as `abcabc</s>def`, and how.
ENDS: dict[str, tuple[dict[str, Any], tuple[str, str | None, str | int | None]]] = {
    "the end-of-sequence token": ({}, ("abcabc", "stop", None)),
    "ignore_eos": ({"ignore_eos": True}, ("abcabcdef", None, None)),
    "max_tokens": ({"max_tokens": 4}, ("abca", "length", None)),
    "max_tokens of 1": ({"max_tokens": 1}, ("a", "length", None)),
    "the longest sequence": ({"limit": len(PROMPT) + 2}, ("ab", "length", None)),
    "max_tokens beyond that": ({"limit": len(PROMPT) + 2, "max_tokens": 9}, ("ab", "length", None)),
    "a stop token": ({"stop_token_ids": [ord("b")]}, ("a", "stop", ord("b"))),
    "a stop token at max_tokens": (
        {"stop_token_ids": [ord("c")], "max_tokens": 3},
        ("ab", "stop", ord("c")),
    ),
    "the end-of-sequence token as a stop token": (
        {"stop_token_ids": [EOS], "ignore_eos": True},
        ("abcabc", "stop", EOS),
    ),
    "a stop string": ({"stop": "c"}, ("ab", "stop", "c")),
    "a stop string over tokens": ({"stop": ["x", "ca"]}, ("ab", "stop", "ca")),
    "a stop string at max_tokens": ({"stop": "bc", "max_tokens": 3}, ("a", "stop", "bc")),
    "a stop string that only began": ({"stop": "bcd", "max_tokens": 3}, ("abc", "length", None)),
    "a stop string that stays out": ({"stop": "zz"}, ("abcabc", "stop", None)),
    "min_tokens": ({"stop": "b", "min_tokens": 2}, ("abca", "stop", "b")),
    "min_tokens for stop tokens": (
        {"stop_token_ids": [ord("b")], "min_tokens": 2},
        ("abca", "stop", ord("b")),
    ),
    "min_tokens up to the last": ({"stop": "b", "min_tokens": 4}, ("abca", "stop", "b")),
    "min_tokens for the end": ({"min_tokens": 7}, ("abcabcdef", None, None)),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_output_ends_by(name: str) -> None:
    params, expected = ENDS[name]
    assert run(sequence(**params), [*b"abcabc", EOS, *b"def"]) == expected


def test_the_token_that_ended_an_output_is_among_its_tokens() -> None:
    for params in ({"stop_token_ids": [ord("c")]}, {"stop": "bc"}):
        s = sequence(**params)
        run(s, b"abcd")
        assert s.output().token_ids == [*b"abc"] and s.num_output_tokens == 3
        assert s.token_ids == [*PROMPT, *b"abc"]


def test_a_special_token_is_text_only_when_asked_for() -> None:
    for skip, text in ((True, "ab"), (False, "a<s>b")):
        s = sequence(skip_special_tokens=skip, max_tokens=3)
        assert run(s, [ord("a"), 256, ord("b")]) == (text, "length", None)


def test_an_output_that_runs_shows_no_text_that_may_yet_be_taken_back() -> None:
    s = sequence(stop="cat")
    s.append(ord("a"))
    s.append(ord("c"))
    assert s.output().text == "a" and not s.output().finished
    s.append(ord("o"))
    assert s.output().text == "aco"


def test_outputs_are_values_that_pickle_and_do_not_change_later() -> None:
    s = sequence(logprobs=1)
    s.append(ord("a"))
    output = s.output()
    s.append(ord("b"))
    assert output.token_ids == [ord("a")] and output.text == "a"
    assert pickle.loads(pickle.dumps(output)) == output
    assert dataclasses.asdict(output)["index"] == 0


def test_prompt_logprobs_are_counted_from_the_second_token() -> None:
    assert sequence().next_prompt_logprob is None
    s = sequence(prompt_logprobs=0)
    assert s.prompt_logprobs == [None] and s.next_prompt_logprob == 1
    s.prompt_logprobs.extend({} for _ in PROMPT[1:])
    assert s.next_prompt_logprob is None
