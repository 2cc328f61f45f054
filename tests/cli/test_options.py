"""The options that commands share."""

from dataclasses import fields

import pytest

from hybridrt.cli.options import EngineOptions, SamplingOptions
from hybridrt.cli.output import plain, shortened
from hybridrt.config import EngineConfig
from hybridrt.request import SamplingParams


def test_defaults_are_those_of_the_library():
    assert EngineConfig(model="m", **EngineOptions().fields()) == EngineConfig(model="m")
    ours = SamplingOptions().params()
    assert ours == SamplingParams(max_tokens=ours.max_tokens)


def test_every_option_is_a_field_of_the_library():
    assert {field.name for field in fields(EngineOptions)} <= EngineConfig.model_fields.keys()
    assert {field.name for field in fields(SamplingOptions)} <= SamplingParams.model_fields.keys()


@pytest.mark.parametrize(("given", "memory"), [("8GiB", 8 * 2**30), ("4096", 4096)])
def test_cache_memory_is_a_size_or_bytes(given, memory):
    options = EngineOptions(cache_memory=given).fields()
    assert EngineConfig(model="m", **options).cache_memory == memory


@pytest.mark.parametrize(
    ("given", "meant"), [(r"\n", "\n"), (r"a\tb", "a\tb"), (r"\\n", r"\n"), ("plain", "plain")]
)
def test_stop_texts_may_be_escaped(given, meant):
    assert SamplingOptions(stop=[given]).params().stop == (meant,)


def test_json_has_no_infinity_and_only_text_keys():
    assert plain({1: (float("-inf"), 0.5)}) == {"1": [None, 0.5]}


@pytest.mark.parametrize("text", ["short", "a\nb", "x" * 300])
def test_shortened_texts_fit(text):
    assert len(shortened(text, 20)) <= 20
    assert "\n" not in shortened(text, 20)
