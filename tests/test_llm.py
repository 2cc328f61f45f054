"""The front door: prompts of every kind, streams, and the online loop."""

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybridrt import LLM, RequestOutput, SamplingParams
from tests.engine.small import (
    EOS,
    assert_nothing_is_held,
    follow_script,
    save_checkpoint,
    small_checkpoint,
    small_llm,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def shared() -> LLM:
    return small_llm()


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    """An engine that every test must leave empty."""
    yield shared
    try:
        assert_nothing_is_held(shared)
    finally:
        for request_id in list(shared.engine._entries):
            shared.abort(request_id)


@pytest.fixture
def scripted() -> Callable[[str | list[int]], LLM]:
    def make(script: str | list[int]) -> LLM:
        llm = small_llm(max_num_batched_tokens=64)
        ids = list(script.encode()) if isinstance(script, str) else script
        follow_script(llm, [*ids, EOS])
        return llm

    return make


def ids_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [completion.token_ids for output in outputs for completion in output.outputs]


AB = [*b"ab"]


@pytest.mark.parametrize(
    ("prompts", "ids", "texts"),
    [
        ("ab", [AB], ["ab"]),
        (AB, [AB], [None]),
        (tuple(AB), [AB], [None]),
        (np.array(AB), [AB], [None]),
        (torch.tensor(AB), [AB], [None]),
        ({"prompt": "ab"}, [AB], ["ab"]),
        ({"prompt_token_ids": AB}, [AB], [None]),
        ({"prompt_token_ids": np.array(AB), "cache_salt": "mine"}, [AB], [None]),
        ({"prompt": "ab", "cache_salt": "mine"}, [AB], ["ab"]),
        ({"prompt": "as it was", "prompt_token_ids": AB}, [AB], ["as it was"]),
        (["ab", "c"], [AB, [99]], ["ab", "c"]),
        ([AB, [99]], [AB, [99]], [None, None]),
        (["ab", AB, {"prompt": "c"}], [AB, AB, [99]], ["ab", None, "c"]),
        (np.array([AB, AB]), [AB, AB], [None, None]),
        ([], [], []),
    ],
    ids=repr,
)
def test_prompts_of_every_kind(llm: LLM, prompts: Any, ids: Any, texts: Any) -> None:
    outputs = llm.generate(prompts, GREEDY)
    assert [output.prompt_token_ids for output in outputs] == ids
    assert [output.prompt for output in outputs] == texts
    assert all(type(t) is int for output in outputs for t in output.prompt_token_ids)


def test_outputs_come_in_the_order_of_the_prompts_with_each_its_parameters(llm: LLM) -> None:
    lengths = (9, 1, 5)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    outputs = llm.generate(["a", "b", "c"], params)
    assert [output.prompt for output in outputs] == ["a", "b", "c"]
    assert [len(ids) for ids in ids_of(outputs)] == [9, 1, 5]
    assert all(output.finished for output in outputs)


def test_without_parameters_a_prompt_gets_the_defaults(llm: LLM) -> None:
    (output,) = llm.generate("a")
    assert 1 <= len(output.outputs[0].token_ids) <= 16


def test_max_model_len_ends_an_output_by_length() -> None:
    llm = small_llm(max_model_len=12)
    (output,) = llm.generate([1] * 8, SamplingParams(max_tokens=None, ignore_eos=True))
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (4, "length")
    (output,) = llm.generate([1] * 11, SamplingParams(max_tokens=50, ignore_eos=True))
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (1, "length")


def test_the_end_token_never_comes_before_min_tokens(llm: LLM) -> None:
    # Bias makes it the choice at every step.
    loves_the_end = {EOS: 100.0}
    for least in (0, 1, 5):
        params = SamplingParams(temperature=0, logit_bias=loves_the_end, min_tokens=least)
        (output,) = llm.generate("a", params)
        tokens = output.outputs[0].token_ids
        assert tokens.index(EOS) == least == len(tokens) - 1
        assert output.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("name", ["repetition", "frequency", "presence"])
def test_penalties_count_where_the_likeliest_token_is_taken(llm: LLM, name: str) -> None:
    """Beside a request without any, whose tokens stay what they are alone."""
    plain = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    penalised = plain.model_copy(update={f"{name}_penalty": 2.0})
    (alone,) = ids_of(llm.generate("a", plain))
    assert len({*alone}) < len(alone)
    beside, other = ids_of(llm.generate(["a", "a"], [plain, penalised]))
    assert beside == alone
    assert len({*other}) > len({*alone})


def test_stop_tokens_wait_for_min_tokens_too(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0, logit_bias={65: 100.0}, min_tokens=3, stop_token_ids=[65], ignore_eos=True
    )
    completion = llm.generate("a", params)[0].outputs[0]
    assert completion.token_ids.index(65) == 3
    assert (completion.finish_reason, completion.stop_reason) == ("stop", 65)


TEXT = "Grüße, 世界! 🙂 and good bye"


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ((), TEXT, ("stop", None)),
        (("good bye",), TEXT.removesuffix("good bye"), ("stop", "good bye")),
        (("世界!", "zz"), "Grüße, ", ("stop", "世界!")),
        (("🙂",), "Grüße, 世界! ", ("stop", "🙂")),
        (("good bye!",), TEXT, ("stop", None)),
    ],
)
def test_streamed_pieces_together_are_the_final_text(
    scripted: Callable[[str], LLM], stop: tuple[str, ...], text: str, reason: tuple[Any, Any]
) -> None:
    llm = scripted(TEXT)
    params = SamplingParams(max_tokens=100, stop=stop)
    shown = ""
    for output in llm.stream("a", params):
        completion = output.outputs[0]
        assert completion.text.startswith(shown), "text that was shown has changed"
        assert "\ufffd" not in completion.text
        shown = completion.text
    assert shown == text == llm.generate("a", params)[0].outputs[0].text
    assert (completion.finish_reason, completion.stop_reason) == reason
    assert_nothing_is_held(llm)


def test_a_stream_has_one_output_for_every_token(llm: LLM) -> None:
    outputs = list(llm.stream("ab", GREEDY))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3, 4, 5, 6]
    assert [output.finished for output in outputs] == [False] * 5 + [True]
    assert ids_of(outputs[-1:]) == ids_of(llm.generate("ab", GREEDY))


def test_closing_a_stream_aborts_its_request(llm: LLM) -> None:
    stream = llm.stream("ab", GREEDY)
    next(stream)
    assert llm.has_unfinished
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]


def take(stream: Iterator[RequestOutput], most: int = 50) -> list[RequestOutput]:
    """All of a stream, unless it has no end."""
    outputs: list[RequestOutput] = []
    for output in stream:
        outputs.append(output)
        assert len(outputs) < most
    return outputs


@pytest.fixture
def bounded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """Fails instead of stepping for ever with nothing to do."""
    step, idle = llm.engine.step, 0

    def step_or_fail() -> list[RequestOutput]:
        nonlocal idle
        idle = 0 if llm.engine.has_unfinished else idle + 1
        assert idle < 5, "waits for an output that never comes"
        return step()

    monkeypatch.setattr(llm.engine, "step", step_or_fail)
    return llm


def test_two_streams_side_by_side_both_get_all_their_outputs(bounded: LLM) -> None:
    expected = ids_of(bounded.generate(["ab", "cd"], GREEDY))
    first, second = bounded.stream("ab", GREEDY), bounded.stream("cd", GREEDY)
    pairs = list(zip(first, second, strict=True))
    assert len(pairs) == 6
    assert ids_of([*pairs[-1]]) == expected
    first, second = bounded.stream("ab", GREEDY), bounded.stream("cd", GREEDY)
    assert [len(take(first)), len(take(second))] == [6, 6]


def test_generate_within_a_stream_leaves_the_stream_whole(bounded: LLM) -> None:
    longer = GREEDY.model_copy(update={"max_tokens": 12})
    num_outputs = 0
    for output in bounded.stream("ab", GREEDY):
        num_outputs += 1
        assert len(output.outputs[0].token_ids) == num_outputs
        bounded.generate("cd", longer)
    assert num_outputs == 6


def test_a_stream_whose_request_is_aborted_ends(bounded: LLM) -> None:
    outputs = []
    for output in bounded.stream("ab", GREEDY):
        outputs.append(output)
        bounded.abort(output.request_id)
    assert len(outputs) == 1


def test_the_online_loop_gives_every_token_and_mixes_arrivals(llm: LLM) -> None:
    expected = ids_of(llm.generate(["ab", "cd"], GREEDY))
    first = llm.add_request("ab", GREEDY)
    llm.step()
    second = llm.add_request("cd", GREEDY, request_id="mine")
    assert second == "mine" != first
    done: dict[str, RequestOutput] = {}
    while llm.has_unfinished:
        done |= {output.request_id: output for output in llm.step() if output.finished}
    assert ids_of([done[first], done[second]]) == expected
    assert llm.step() == []


def test_an_online_request_that_finishes_during_generate_is_not_lost(bounded: LLM) -> None:
    online = bounded.add_request("ab", GREEDY)
    longer = GREEDY.model_copy(update={"max_tokens": 12})
    (output,) = bounded.generate("cd", longer)
    assert len(output.outputs[0].token_ids) == 12
    seen: dict[str, RequestOutput] = {}
    while bounded.has_unfinished:
        seen |= {output.request_id: output for output in bounded.step()}
    assert list(seen) == [online] and seen[online].finished


def test_a_request_id_of_the_users_never_stands_in_the_way_of_ours(llm: LLM) -> None:
    taken = int(llm.add_request("ab", GREEDY).removeprefix("request-"))
    for ahead in (1, 2, 4):
        llm.add_request("ab", GREEDY, request_id=f"request-{taken + ahead}")
    outputs = llm.generate(["ab"] * 4, GREEDY)
    assert len({output.request_id for output in outputs}) == 4
    while llm.has_unfinished:
        llm.step()


def test_requests_and_outputs_pickle(llm: LLM) -> None:
    params = SamplingParams(n=2, seed=3, logprobs=2, prompt_logprobs=1, stop="x", logit_bias={5: 1})
    (output,) = llm.generate("ab", params)
    assert pickle.loads(pickle.dumps(output)) == output
    assert pickle.loads(pickle.dumps(params)) == params
    request_id = llm.add_request("ab", params)
    request = llm.engine._entries[request_id].request
    assert pickle.loads(pickle.dumps(request)) == request
    llm.abort(request_id)
    assert pickle.loads(pickle.dumps(llm.config)) == llm.config
    assert pickle.loads(pickle.dumps(llm.plan)) == llm.plan


def test_a_model_without_a_tokenizer_runs_on_token_ids(tmp_path: Path) -> None:
    llm = small_llm(save_checkpoint(tmp_path / "bare", tokenizer=False))
    (output,) = llm.generate([1, 2], SamplingParams(max_tokens=3, ignore_eos=True, logprobs=1))
    completion = output.outputs[0]
    assert (len(completion.token_ids), completion.text, output.prompt) == (3, "", None)
    assert completion.logprobs is not None
    assert all(of.decoded_token is None for entry in completion.logprobs for of in entry.values())


def test_generation_config_names_the_end_before_config_does(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "ends")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [66, 67]}))
    llm = small_llm(path)
    follow_script(llm, [65, EOS, 67, 65])
    completion = llm.generate("a", SamplingParams(max_tokens=9))[0].outputs[0]
    assert (completion.token_ids, completion.finish_reason) == ([65, EOS, 67], "stop")


def test_the_path_of_a_model_may_be_a_path() -> None:
    llm = LLM(small_checkpoint(), device="cpu", cache_memory="256KiB")  # pyright: ignore[reportArgumentType]
    assert llm.config.model == str(small_checkpoint())
