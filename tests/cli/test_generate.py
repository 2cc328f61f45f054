"""`hybridrt generate`."""

import json

import pytest

from hybridrt import LLM, SamplingParams

from .conftest import DEMO

GREEDY = ("--temperature", 0, "--max-tokens", 6)
FACT = "amy=372\ntom=111\namy?"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Prompt to completion, as the library has it."""
    prompts = [FACT, "now=", "tom"]
    outputs = LLM(str(DEMO)).generate(prompts, SamplingParams(temperature=0, max_tokens=6))
    return {prompt: output.outputs[0].text for prompt, output in zip(prompts, outputs, strict=True)}


def test_writes_the_completion_of_one_prompt(run, texts):
    done = run("generate", "demo", FACT, *GREEDY)
    assert (done.code, done.out) == (0, texts[FACT] + "\n")


def test_writes_each_prompt_above_its_completion(run, texts):
    done = run("generate", "demo", *texts, *GREEDY)
    for number, (prompt, text) in enumerate(texts.items(), start=1):
        assert f"[{number}/3] {' '.join(prompt.split())}\n{text}\n" in done.out


def test_json_is_one_object_a_prompt_in_their_order(run, texts):
    lines = run("generate", "demo", *texts, *GREEDY, "--json", "--logprobs", 1).lines
    assert [line["prompt"] for line in lines] == list(texts)
    assert [line["outputs"][0]["text"] for line in lines] == list(texts.values())
    first = lines[0]["outputs"][0]
    assert len(first["logprobs"]) == len(first["token_ids"]) == 6
    assert 0 <= lines[0]["metrics"]["first_token_time"] <= lines[0]["metrics"]["finished_time"]


def test_n_completions_of_one_prompt(run):
    line = run("generate", "demo", "now=", "--n", 3, "--seed", 1, "--json").json
    assert [output["index"] for output in line["outputs"]] == [0, 1, 2]


def test_prompts_come_from_everywhere_at_once(run, tmp_path, texts):
    plain, several = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text(FACT + "\n")
    several.write_text(json.dumps({"prompt": "now="}) + "\n\n" + json.dumps([110, 111]) + "\n")
    done = run(
        "generate", "demo", "tom", *GREEDY, "--json", "--token-ids", "110, 111",
        *("--prompt-file", plain, "--prompt-file", several, "--prompt-file", "-"), stdin=FACT,
    )  # fmt: skip
    outputs = [line["outputs"][0]["text"] for line in done.lines]
    expected = [texts["tom"], texts[FACT], texts["now="], outputs[-1], texts[FACT], outputs[-1]]
    assert outputs == expected


def test_a_model_without_a_tokenizer_writes_token_ids(run, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(DEMO / name)
    done = run("generate", tmp_path, "--token-ids", "1,2,3", *GREEDY)
    assert done.code == 0
    assert len([int(token) for token in done.out.split()]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo"], "no prompt"),
        (["demo", "x", "--top-p", "2"], "--top-p=2.0"),
        (["demo", "x", "--page-size", "0"], "--page-size=0"),
        (["demo", "x", "--cache-memory", "8Gigs"], "--cache-memory='8Gigs'"),
        (["demo", "x", "--cache-memory", "10KB"], "cache_memory=10000 bytes is not enough"),
        (["demo", ""], "the prompt is empty"),
        (["demo", "--token-ids", "1,x"], "--token-ids='1,x'"),
        (["demo", "--token-ids", "1,900"], "token id 900"),
        (["demo", "--prompt-file", "nowhere.txt"], "nowhere.txt"),
        (["./nowhere", "x"], "'./nowhere'"),
    ],
)
def test_user_errors_are_one_line_on_standard_error(run, arguments, message):
    done = run("generate", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_line_that_is_no_json_is_named(run, tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('"fine"\n{oops\n')
    assert "p.jsonl, line 2: not valid JSON" in run("generate", "demo", "--prompt-file", file).err


def test_a_session_goes_on_from_its_file(run, tmp_path, texts):
    file, other = tmp_path / "a.session", tmp_path / "b.session"
    first = run("generate", "demo", FACT, *GREEDY, "--save-session", file)
    assert (first.code, first.out) == (0, texts[FACT] + "\n")
    second = run("generate", "demo", "tom?", *GREEDY, "--session", file, "--save-session", other)
    whole = FACT + texts[FACT] + "tom?"
    (cold,) = LLM(str(DEMO)).generate(whole, SamplingParams(temperature=0, max_tokens=6))
    assert second.out == cold.outputs[0].text + "\n"
    third = run("generate", "demo", *GREEDY, "--session", other, "--save-session", other, "--json")
    assert third.json["prompt_token_ids"] == cold.prompt_token_ids + cold.outputs[0].token_ids
    assert third.json["num_cached_tokens"] == len(third.json["prompt_token_ids"])


def test_what_a_session_can_not_be_is_said_in_a_line(run, tmp_path):
    file = tmp_path / "s"
    file.write_bytes(b"no session")
    for arguments, message in (
        (["x", "--session", file], "truncated or not a safetensors file"),
        (["x", "--session", tmp_path / "nowhere"], "nowhere"),
        (["x", "y", "--save-session", file], "a session takes one prompt; 2 were given"),
        (["--save-session", file], "a session takes one prompt; 0 were given"),
        (["x", "--n", 2, "--save-session", file], "n=2: a session is one sequence"),
    ):
        done = run("generate", "demo", *arguments)
        assert done.code == 2 and message in done.err and done.err.count("\n") == 1
    assert file.read_bytes() == b"no session"
