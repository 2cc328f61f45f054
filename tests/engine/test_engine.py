"""The engine: schedule, run, commit; and nothing is lost when a step fails."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hybridrt import LLM, RequestOutput, SamplingParams
from hybridrt.engine.scheduler import Row
from tests.engine.small import (
    assert_nothing_is_held,
    follow_script,
    small_llm,
    tight_llm,
)

PROMPTS = [[*b"one"], [*b"a second prompt, cut in two"], [*b"3"], [*b"the fourth"]]


def greedy(**changes: Any) -> SamplingParams:
    defaults: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
    return SamplingParams(**{**defaults, **changes})


def tokens(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [completion.token_ids for output in outputs for completion in output.outputs]


def scores(output: RequestOutput) -> list[dict[int, float]]:
    """Logprobs of prompt and output."""
    assert output.prompt_logprobs is not None and output.outputs[0].logprobs is not None
    entries = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    return [{token: of.logprob for token, of in (entry or {}).items()} for entry in entries]


@pytest.fixture(scope="module")
def alone() -> list[RequestOutput]:
    """Every prompt by itself, in one piece, in a cache without bounds."""
    llm = small_llm(max_num_batched_tokens=128, page_size=16)
    params = greedy(logprobs=3, prompt_logprobs=3)
    return [llm.generate(prompt, params)[0] for prompt in PROMPTS]


def close(given: RequestOutput, expected: RequestOutput) -> bool:
    return given.outputs[0].token_ids == expected.outputs[0].token_ids and all(
        a.keys() == b.keys() and all(a[t] == pytest.approx(b[t], abs=1e-4) for t in a)
        for a, b in zip(scores(given), scores(expected), strict=True)
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 3},
        {"page_size": 8, "kernel_block_size": 2},
        {"kv_layout": "NHD", "max_num_seqs": 2},
        {"cache_policy": "contiguous"},
    ],
    ids=str,
)
def test_tokens_and_all_logprobs_are_the_same_however_prompts_are_cut(
    alone: list[RequestOutput], options: dict[str, Any]
) -> None:
    llm = small_llm(**options)
    outputs = llm.generate(PROMPTS, greedy(logprobs=3, prompt_logprobs=3))
    assert all(close(*pair) for pair in zip(outputs, alone, strict=True))
    assert_nothing_is_held(llm)


def test_tokens_and_all_logprobs_are_the_same_after_preemption(
    alone: list[RequestOutput],
) -> None:
    llm = tight_llm(80, max_num_batched_tokens=5)
    outputs = llm.generate(PROMPTS * 3, greedy(logprobs=3, prompt_logprobs=3))
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert all(close(*pair) for pair in zip(outputs, alone * 3, strict=True))
    assert_nothing_is_held(llm)


def test_bug_10_a_pool_full_of_nan_changes_nothing(alone: list[RequestOutput]) -> None:
    llm = small_llm(max_num_batched_tokens=7)
    llm.engine.pool.bytes.fill_(0xFF)
    outputs = llm.generate(PROMPTS, greedy(logprobs=3, prompt_logprobs=3))
    assert all(close(*pair) for pair in zip(outputs, alone, strict=True))


def test_prompt_logprobs_are_those_of_the_output_that_would_have_been(
    alone: list[RequestOutput],
) -> None:
    # Behind "one" come its tokens; given as a prompt, they have the same logprobs.
    whole = [*PROMPTS[0], *alone[0].outputs[0].token_ids]
    output = small_llm().generate(whole, greedy(max_tokens=1, logprobs=3, prompt_logprobs=3))[0]
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(whole)
    given, expected = scores(output)[:-1], scores(alone[0])
    for a, b in zip(given, expected, strict=True):
        assert a == pytest.approx(b, abs=1e-4)


def test_every_number_of_logprobs_and_the_chosen_token_with_them() -> None:
    llm = small_llm()
    for count in (0, 1, 258):
        output = llm.generate(PROMPTS[0], greedy(logprobs=count, prompt_logprobs=count))[0]
        assert output.prompt_logprobs is not None and output.outputs[0].logprobs is not None
        generated = output.outputs[0].logprobs
        for token, entry in zip(output.outputs[0].token_ids, generated, strict=True):
            assert entry[token].rank == 1 and len(entry) == max(1, count)
        for token, entry in zip(PROMPTS[0], output.prompt_logprobs, strict=True):
            assert entry is None or (token in entry and count <= len(entry) <= count + 1)
        chosen = [e[t].logprob for t, e in zip(output.outputs[0].token_ids, generated, strict=True)]
        assert output.outputs[0].cumulative_logprob == pytest.approx(sum(chosen))
    assert llm.generate(PROMPTS[0], greedy())[0].prompt_logprobs is None


def sampled(**changes: Any) -> SamplingParams:
    return greedy(temperature=1.0, seed=7, **changes)


def test_a_seeded_draw_is_the_same_alone_batched_in_any_order_and_preempted() -> None:
    llm = small_llm()
    expected = [tokens(llm.generate(prompt, sampled()))[0] for prompt in PROMPTS]
    assert tokens(llm.generate(PROMPTS, sampled())) == expected
    assert tokens(llm.generate(PROMPTS[::-1], sampled())) == expected[::-1]
    tight = tight_llm(80, max_num_batched_tokens=5)
    outputs = tight.generate(PROMPTS * 3, sampled())
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert tokens(outputs) == expected * 3


def test_several_outputs_of_a_prompt_are_unlike_and_repeatable() -> None:
    llm = small_llm()
    output = llm.generate(PROMPTS[0], sampled(n=4))[0]
    assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(t) for t in tokens([output])}) == 4
    assert tokens(llm.generate(PROMPTS[0], sampled(n=4))) == tokens([output])
    # The first of several is the only one of one.
    assert tokens(llm.generate(PROMPTS[0], sampled())) == tokens([output])[:1]
    assert_nothing_is_held(llm)


def test_requests_without_a_seed_draw_from_the_engines_each_its_own() -> None:
    first, again, other = (small_llm(seed=seed) for seed in (3, 3, 4))
    params = greedy(temperature=1.0)
    drawn = tokens(first.generate([PROMPTS[0]] * 3, params))
    assert len({tuple(t) for t in drawn}) == 3
    assert tokens(again.generate([PROMPTS[0]] * 3, params)) == drawn
    assert tokens(other.generate([PROMPTS[0]] * 3, params)) != drawn


@pytest.mark.parametrize("failing_step", [0, 1, 2, 5])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_the_model_leaves_the_engine_working_and_right(
    alone: list[RequestOutput],
    monkeypatch: pytest.MonkeyPatch,
    failing_step: int,
    error: type[BaseException],
) -> None:
    llm = small_llm()
    params = greedy(logprobs=3, prompt_logprobs=3)
    ids = [llm.add_request(prompt, params) for prompt in PROMPTS]
    run, num_steps = llm.engine._runner.run, 0

    def fail_once(rows: Sequence[Row]) -> Any:
        nonlocal num_steps
        results = run(rows)  # so the states have moved on when it fails
        num_steps += 1
        if num_steps == failing_step + 1:
            raise error("out of luck")
        return results

    monkeypatch.setattr(llm.engine._runner, "run", fail_once)
    done: dict[str, RequestOutput] = {}
    num_errors = 0
    while llm.has_unfinished:
        try:
            done |= {output.request_id: output for output in llm.step()}
        except error:
            num_errors += 1
    assert num_errors == 1
    assert all(close(done[i], expected) for i, expected in zip(ids, alone, strict=True))
    assert_nothing_is_held(llm)


def test_an_error_during_generate_drops_its_requests_and_no_other(
    monkeypatch: pytest.MonkeyPatch, alone: list[RequestOutput]
) -> None:
    llm = small_llm()
    other = llm.add_request(PROMPTS[1], greedy())
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of luck"):
        patch.setattr(llm.engine.model, "forward", _fail)
        llm.generate(PROMPTS, greedy())
    assert list(llm.engine._entries) == [other]
    while llm.has_unfinished:
        outputs = llm.step()
    assert tokens(outputs) == tokens(alone[1:2])
    assert_nothing_is_held(llm)


def _fail(*args: Any) -> None:
    raise RuntimeError("out of luck")


def test_aborting_leaves_the_others_as_they_would_have_been(alone: list[RequestOutput]) -> None:
    for num_steps in range(5):
        llm = small_llm(max_num_seqs=3)
        ids = [llm.add_request(prompt, greedy()) for prompt in PROMPTS]
        done: dict[str, RequestOutput] = {}
        for _ in range(num_steps):
            done |= {output.request_id: output for output in llm.step()}
        llm.abort(ids[1])
        llm.abort(ids[3])  # it waits, at first
        llm.abort("no such request")
        while llm.has_unfinished:
            for output in llm.step():
                assert output.request_id in (ids[0], ids[2])
                done[output.request_id] = output
        assert tokens([done[ids[0]], done[ids[2]]]) == tokens([alone[0], alone[2]])
        assert_nothing_is_held(llm)


def test_aborting_drops_all_of_several_outputs() -> None:
    llm = small_llm()
    follow_script(llm, lambda row: 257 if row.sequence.index == 0 else 65)
    request = llm.add_request([1, 2], SamplingParams(n=3, max_tokens=50))
    outputs = llm.step()[0].outputs
    assert [output.finish_reason for output in outputs] == ["stop", None, None]
    llm.abort(request)
    assert_nothing_is_held(llm)
    assert llm.step() == []


def test_bug_14_a_duplicate_request_id_is_refused_and_leaks_nothing(
    alone: list[RequestOutput],
) -> None:
    llm = small_llm()
    llm.add_request(PROMPTS[0], greedy(), request_id="mine")
    llm.step()
    with pytest.raises(ValueError, match="request 'mine' is in the engine already"):
        llm.add_request(PROMPTS[1], greedy(n=2), request_id="mine")
    assert (llm.engine.num_running, llm.engine.num_waiting, len(llm.engine.pages)) == (1, 0, 1)
    while llm.has_unfinished:
        outputs = llm.step()
    assert tokens(outputs) == tokens(alone[:1])
    assert_nothing_is_held(llm)
    llm.add_request(PROMPTS[0], greedy(), request_id="mine")  # it is free again


def test_bug_14_requests_that_are_refused_leak_nothing() -> None:
    llm = small_llm()
    for wrong in ([], [258], [-1], [1] * 128):
        with pytest.raises(ValueError):
            llm.generate([PROMPTS[0], wrong], greedy())
    assert_nothing_is_held(llm)


def test_a_request_says_when_things_happened_to_it() -> None:
    llm = small_llm()
    follow_script(llm, [65, 66])
    llm.add_request([1] * 20, SamplingParams(max_tokens=2))
    assert llm.step() == []  # 16 of 20 tokens: nothing to tell yet
    (output,) = llm.step()
    times = output.metrics
    assert times.first_scheduled_time is not None and times.first_token_time is not None
    assert times.arrival_time <= times.first_scheduled_time <= times.first_token_time
    assert times.finished_time is None and not output.finished
    (output,) = llm.step()
    assert output.finished and output.metrics.first_token_time == times.first_token_time
    assert output.metrics.finished_time is not None
    assert output.metrics.finished_time >= times.first_token_time
    assert (output.num_cached_tokens, output.cache_note) == (0, "no match")


def test_a_model_without_memory_of_the_past_needs_no_pages(tmp_path: Any) -> None:
    from tests.engine.small import save_checkpoint

    path = save_checkpoint(tmp_path / "mlp", layers=[{"type": "mlp", "intermediate_size": 8}])
    llm = small_llm(path)
    assert llm.plan.pool_bytes == 0
    outputs = llm.generate([[1], [2] * 40], greedy())
    assert [len(t) for t in tokens(outputs)] == [8, 8]


def test_dtypes_that_a_model_runs_in_are_those_of_its_weights(tmp_path: Any) -> None:
    for name in ("bfloat16", "float16"):
        llm: LLM = small_llm(dtype=name)
        weights = dict(llm.engine.model.named_parameters())
        assert weights[
            "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
        ].dtype == getattr(torch, name)
        assert weights["model.layers.1.mixer.A_log"].dtype == torch.float32
        assert len(tokens(llm.generate(PROMPTS[1], greedy()))[0]) == 8
