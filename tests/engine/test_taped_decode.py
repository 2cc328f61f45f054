"""Decode steps from tapes give what the model's own forward gives, bit for bit."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hybridrt import LLM, SamplingParams
from hybridrt.engine import taped_decode
from hybridrt.engine import tapes as tapes_module
from hybridrt.engine.module_changes import ModuleParts
from hybridrt.engine.taped_decode import TapedDecode
from hybridrt.engine.tapes import Tapes
from hybridrt.kernels.op import observed_calls
from tests.engine.small import small_llm
from tests.harness.engines import RECORDED, open_llm
from tests.harness.rows import CACHE_ROWS, ROWS
from tests.oracle import BY_NAME

PARAMS = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True, logprobs=2)
UNREADABLE = {"Tensor.tolist", "Tensor.numpy", "reads what is for kernels alone"}
"""Why some steps are not recorded: plain torch asks which experts there are, or how long rows."""

BEHIND_SUMS = ("post_attention_layernorm", "pre_ff_layernorm")


def tapes(llm: LLM) -> Tapes[int]:
    """Those of decodes."""
    found = llm.engine._runner.static_decode
    assert isinstance(found, TapedDecode)
    return found.decode_tapes


def outputs(llm: LLM, name: str) -> list[Any]:
    """Of four sequences that end at unlike steps, and of some of them again."""
    draw = torch.Generator().manual_seed(1)
    size = BY_NAME[name].config["vocab_size"]
    prompts = [torch.randint(size, (n,), generator=draw).tolist() for n in (3, 9, 17, 5)]
    results = llm.generate(prompts, PARAMS) + llm.generate(prompts[:2], PARAMS)
    return [(one.token_ids, one.logprobs) for result in results for one in result.outputs]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "bfloat16") for name in ROWS), *((name, "float32") for name in CACHE_ROWS)],
)
def test_every_model(name: str, dtype: str) -> None:
    options = {"page_size": 4, "cache_memory": "4MiB", "enable_prefix_caching": False}
    llm = open_llm(name, dtype=dtype, record_decode=True, **options)
    found, made = outputs(llm, name), tapes(llm)
    assert made.num_calls if made.flaw is None else any(why in made.flaw for why in UNREADABLE)
    llm.engine._runner.static_decode = None
    assert outputs(llm, name) == found


@pytest.mark.parametrize("name", RECORDED)
def test_these_are_recorded(name: str) -> None:
    llm = open_llm(name, dtype="bfloat16")
    outputs(llm, name)
    assert tapes(llm).flaw is None and tapes(llm).num_calls.keys() == {2, 4}


def test_a_prompt_that_comes_again_is_a_row_of_a_tape() -> None:
    llm, prompt = small_llm(), [*range(1, 20)]
    one = PARAMS.model_copy(update={"max_tokens": 1})
    found = [llm.generate([prompt], one)[0] for _ in range(4)]
    assert [output.num_cached_tokens for output in found] == [0, 18, 18, 18]
    assert [*tapes(llm).num_calls] == [1]  # no other step had a row alone that could be recorded
    plain = small_llm(enable_prefix_caching=False, record_decode=False).generate([prompt], one)[0]
    assert all(output.outputs[0].token_ids == plain.outputs[0].token_ids for output in found)


def test_few_tapes_are_kept_those_that_were_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes_module, "MOST_TAPES", 2)
    llm = small_llm(max_num_seqs=8)
    for count in (1, 2, 1, 3):
        llm.generate([[1 + i] * 3 for i in range(count)], PARAMS)
    assert [*tapes(llm).num_calls] == [1, 3]


def test_more_rows_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taped_decode, "MOST_ROWS", 2)
    llm = small_llm(max_num_seqs=8)
    llm.generate([[1 + i] * 3 for i in range(3)], PARAMS)
    assert not tapes(llm).num_calls
    llm.generate([[1] * 3], PARAMS)
    assert [*tapes(llm).num_calls] == [1]


def test_hooks_are_called() -> None:
    """A tape makes no call of a module, so with a hook there is none."""
    llm = small_llm(enable_prefix_caching=False)
    expected = llm.generate([[1] * 5], PARAMS)[0].outputs[0]
    assert tapes(llm).num_calls
    calls: list[Any] = []
    mixer = llm.engine.model.model.layers[0]
    handle = mixer.register_forward_hook(lambda *args: calls.append(args[1]))
    llm.generate([[1] * 5], PARAMS)
    assert len(calls) == PARAMS.max_tokens
    handle.remove()
    again = llm.generate([[1] * 5], PARAMS)[0].outputs[0]
    assert len(calls) == PARAMS.max_tokens
    assert (again.token_ids, again.logprobs) == (expected.token_ids, expected.logprobs)


@pytest.mark.parametrize("name", ["llama-grouped-heads", "bamba-two-groups"])
def test_a_hook_on_a_norm_behind_a_sum_is_called(name: str) -> None:
    """A tape and a step without hooks compute both by one kernel: the same numbers."""
    llm = open_llm(name, dtype="bfloat16", enable_prefix_caching=False)
    expected = outputs(llm, name)
    assert tapes(llm).num_calls
    norms: list[Any] = []
    layer = llm.engine.model.model.layers[0]
    (norm,) = (part for path, part in layer.named_children() if path in BEHIND_SUMS)
    handle = norm.register_forward_hook(lambda *args: norms.append(args[2]))
    assert outputs(llm, name) == expected and norms
    handle.remove()
    seen = len(norms)
    assert outputs(llm, name) == expected and len(norms) == seen


def _replace_weight(model: Any) -> None:
    model.model.norm.weight = torch.nn.Parameter(model.model.norm.weight * 2)


def _replace_memory(model: Any) -> None:
    model.model.norm.weight.data = model.model.norm.weight * 2


def _write_weight(model: Any) -> None:
    with torch.inference_mode():
        model.model.norm.weight *= 2


def _replace_module(model: Any) -> None:
    model.model.norm = torch.nn.Sequential(model.model.norm, _Twice())


def _replace_method(model: Any) -> None:
    norm = model.model.norm
    forward = norm.forward
    norm.forward = lambda *args: 2 * forward(*args)


def _change_setting(model: Any) -> None:
    model.logit_softcap = (model.logit_softcap or 8.0) / 2


class _Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


CHANGES = [
    _replace_weight,
    _replace_memory,
    _write_weight,
    _replace_module,
    _replace_method,
    _change_setting,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_computes_what_it_is_now(change: Callable[[Any], None]) -> None:
    """Each change makes other log-probabilities: of twice the logits, or of capped ones."""
    plain, taped = (
        small_llm(record_decode=records, enable_prefix_caching=False) for records in (False, True)
    )
    found = [[] for _ in range(2)]
    for llm, logprobs in zip((plain, taped), found, strict=True):
        for _ in range(2):
            logprobs.append(llm.generate([[1] * 5], PARAMS)[0].outputs[0].logprobs)
            change(llm.engine.model)
        logprobs.append(llm.generate([[1] * 5], PARAMS)[0].outputs[0].logprobs)
    assert found[0] == found[1]
    assert found[0][0] != found[0][1] != found[0][2]
    assert tapes(taped).flaw is None and tapes(taped).num_calls


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_is_changed_between_two_steps(change: Callable[[Any], None]) -> None:
    found = []
    for records in (False, True):
        llm = small_llm(record_decode=records, enable_prefix_caching=False)
        llm.generate([[2] * 5], PARAMS)
        llm.add_request([1] * 5, PARAMS)
        for _ in range(5):
            (output,) = llm.step()
        change(llm.engine.model)
        while llm.has_unfinished:
            (output,) = llm.step()
        found.append(output.outputs[0].logprobs)
        assert not records or tapes(llm).flaw is None
    assert found[0] == found[1]


def test_generate_looks_at_the_model_once_behind_a_recorded_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = small_llm(enable_prefix_caching=False)
    for token in (2, 3):
        llm.generate([[token] * 5], PARAMS)
    looks = list[bool]()
    are_the_same = ModuleParts.are_the_same

    def look(parts: ModuleParts) -> bool:
        looks.append(are_the_same(parts))
        return looks[-1]

    monkeypatch.setattr(ModuleParts, "are_the_same", look)
    llm.generate([[1] * 5], PARAMS)
    assert looks == [True]
    # Whoever steps by himself may change the model between any two.
    llm.add_request([1] * 5, PARAMS)
    while llm.has_unfinished:
        llm.step()
    assert looks == [True] * PARAMS.max_tokens


def test_a_compiled_module_is_called() -> None:
    llm = small_llm()
    llm.generate([[1] * 5], PARAMS)
    assert tapes(llm).num_calls
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    llm.engine.model.model.norm.compile(backend=compiler)
    llm.generate([[1] * 5], PARAMS)
    assert graphs and not tapes(llm).num_calls


def test_calls_that_are_observed_are_made() -> None:
    llm = small_llm()
    llm.generate([[1] * 5], PARAMS)
    names: list[str] = []
    with observed_calls(lambda name, arguments: names.append(name)):
        llm.generate([[1] * 5], PARAMS)
    assert names.count("paged_attention") >= PARAMS.max_tokens


def test_what_can_not_be_recorded_runs_as_before(caplog: pytest.LogCaptureFixture) -> None:
    plain, taped = (
        small_llm(record_decode=records, attention_backend="reference") for records in (False, True)
    )
    with caplog.at_level(logging.INFO, logger="hybridrt"):
        found = [llm.generate([[1] * 5], PARAMS)[0].outputs[0].token_ids for llm in (plain, taped)]
    assert found[0] == found[1]
    assert plain.engine._runner.static_decode is None
    assert tapes(taped).flaw is not None and not tapes(taped).num_calls
    assert f"decode steps can't be recorded: {tapes(taped).flaw}" in caplog.text
