"""`hybridrt demo`, and the watch that it keeps on the cache."""

import pytest

from hybridrt import LLM, SamplingParams
from hybridrt.cli.demo import _Seconds
from hybridrt.cli.usage import in_use, most_in_use

from .conftest import DEMO


def test_answers_questions_of_every_kind(run):
    data = run("demo", "--json", "--seed", 3).json
    assert [prompt["kind"] for prompt in data["prompts"]] == 2 * [
        "attention", "mla", "mamba1", "mamba2",
    ]  # fmt: skip
    for prompt in data["prompts"]:
        assert prompt["right"] == (prompt["answer"] == prompt["expected"])
        assert f"{prompt['prompt'][-4:-1]}={prompt['expected']}\n" in prompt["prompt"]
    assert data["right"] == sum(prompt["right"] for prompt in data["prompts"])
    assert 0 <= data["compile_seconds"] < data["seconds"]


def test_says_how_long_it_compiled_apart_from_answering(run, monkeypatch):
    seconds = _Seconds(total=41.5, compiling=39.0)
    monkeypatch.setattr("hybridrt.cli.demo._Seconds", lambda **_: seconds)
    out = " ".join(run("demo").out.split())
    assert "prompt tokens, in 2.5 s." in out and "compiled for 39 s. They are kept." in out


def test_reports_the_pages_that_its_requests_took(run):
    data = run("demo", "--json", "--prompts", 3).json
    for layer in data["layers"]:
        if layer["kind"] == "state":
            assert layer["pages"] >= 3  # and those that are kept for later prompts
        else:
            prompts = [prompt["num_prompt_tokens"] for prompt in data["prompts"]]
            assert layer["pages"] >= sum(-(-tokens // 16) for tokens in prompts)
        assert layer["bytes"] == layer["pages"] * layer["bytes_per_page"]


def test_prints_answers_and_the_cache_in_80_columns(run):
    done = run("demo", "--prompts", 4)
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    for text in ("expected", "of 4 right", "kv ", "now 0 are in use"):
        assert text in done.out


def test_refuses_to_ask_nothing(run):
    assert "--prompts=0 should be at least 1" in run("demo", "--prompts", 0).err


@pytest.mark.parametrize(("max_tokens", "pages"), [(1, 2), (16, 2), (17, 3)])
def test_pages_that_are_given_back_in_the_same_step_are_counted(max_tokens, pages):
    llm = LLM(str(DEMO), cache_memory="2MiB", enable_prefix_caching=False)
    llm.add_request([65] * 17, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    while llm.has_unfinished:
        llm.step()
    assert {use.layer.kind: use.pages for use in most_in_use(llm)} == {"full": pages, "state": 1}
    assert {use.pages for use in in_use(llm)} == {0}
