"""`compare` of two sessions, and what a comparison says of itself."""

import io
import json
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from transformers import AutoModelForCausalLM

from hybridrt import LLM, SamplingParams, compare
from hybridrt.introspection.differences import difference
from tests.oracle import tiny_checkpoint
from tests.session.open_sessions import ATTENTION, DEEPSEEK, EVERY_KIND, PROMPT, WINDOWS, open_llm

JAMBA = "jamba-experts-every-second-layer"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return open_llm(EVERY_KIND)


@pytest.fixture(scope="module")
def jamba() -> LLM:
    return open_llm(JAMBA)


@pytest.mark.parametrize("name", [EVERY_KIND, DEEPSEEK, WINDOWS])
def test_the_same_tokens_in_unlike_backends_and_pages_agree(name: str) -> None:
    others = {"attention_backend": "reference", "state_backend": "reference", "kv_layout": "NHD"}
    with open_llm(name).session(PROMPT) as a, open_llm(name, **others).session(PROMPT) as b:
        found = compare(a, b)
    assert found.equal and not found.notes
    assert found.rows[-1].name == "logits"
    assert found.summary.startswith("All agree to")


def test_generated_and_appended_tokens_leave_the_same(llm: LLM) -> None:
    with llm.session(PROMPT) as a:
        a.generate(SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
        with llm.session(a.token_ids, cache_salt="another") as b:
            assert compare(a, b).equal


def test_unlike_tokens_are_named_first_and_what_is_before_them_agrees(llm: LLM) -> None:
    other = [*PROMPT]
    other[20] += 1
    with llm.session(PROMPT) as a, llm.session(other) as b:
        found = compare(a, b)
    assert found.first is not None
    assert (found.first.name, found.first.token) == ("tokens", 20)
    assert "token 20" in found.summary
    by_token = [row for row in found.rows[1:] if row.what == "cache"]
    assert by_token and all(not row.excess for row in by_token)
    assert not any(row.name == "ssm_state" for row in found.rows)
    assert "no states" in found.notes[0]


def test_a_longer_session_agrees_with_a_shorter_one_as_far_as_that_goes(llm: LLM) -> None:
    with llm.session(PROMPT) as a, llm.session(PROMPT[:-3]) as b:
        found = compare(a, b)
    first = found.first
    assert first is not None and (first.name, first.token) == ("tokens", len(PROMPT) - 3)
    assert found.summary == "One has 37 tokens, the other 34; the first 34 are the same."
    with llm.session(PROMPT) as a, llm.session() as empty:
        assert compare(a, empty).summary == "One has 37 tokens, the other 0."


def test_the_layer_token_and_head_of_an_error_are_named() -> None:
    right, wrong = open_llm(ATTENTION), open_llm(ATTENTION)
    broken: Any = list(wrong.engine.model.cached_layers().values())[1]
    write = broken.update_kv_cache

    def off_from_token_11(k: Any, v: Any, batch: Any) -> None:
        v = v.clone()
        v[:, 1] += 0.5 * (batch.positions >= 11)[:, None]
        write(k, v, batch)

    broken.update_kv_cache = off_from_token_11
    with wrong.session(PROMPT) as a, right.session(PROMPT) as b:
        found = compare(a, b)
        loose = compare(a, b, tolerance=1e6)
    first = found.first
    assert first is not None
    assert (first.mixer, first.name, first.token) == ("attention", "v", 11)
    assert first.difference.head == 1
    assert first.difference.largest == pytest.approx(0.5, abs=1e-3)
    assert all(not row.excess for row in found.rows[: found.rows.index(first)])
    assert "everything before it agrees" in found.summary
    assert loose.equal


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "int8"])
def test_quantised_caches_agree_within_what_they_round(dtype: str) -> None:
    with (
        open_llm(ATTENTION, kv_cache_dtype=dtype).session(PROMPT) as a,
        open_llm(ATTENTION).session(PROMPT) as b,
    ):
        found, exact = compare(a, b), compare(a, b, tolerance=1e-4)
    first_layer = [row for row in found.rows if row.layer == found.rows[0].layer]
    assert first_layer and not any(row.excess for row in first_layer)
    assert found.tolerance > exact.tolerance
    assert exact.first is exact.rows[0]


def test_bfloat16_agrees_with_float32_within_its_rounding(jamba: LLM) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(JAMBA), dtype=torch.float32)
    plain = {"attention_backend": "reference", "state_backend": "reference"}
    with open_llm(JAMBA, dtype="bfloat16", **plain).session(PROMPT[:7]) as session:
        found = compare(session, model)
    assert found.tolerance == 5e-2
    attended = [row for row in found.rows if row.layer == 0]
    assert attended and not any(row.excess for row in attended if row.what == "weight")


def test_a_comparison_prints_and_is_plain_data(jamba: LLM) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(JAMBA), dtype=torch.float32)
    with jamba.session(PROMPT) as session, torch.no_grad():
        taps: Any = jamba.engine.model.get_parameter("model.layers.2.mamba.conv1d.weight")
        kept = taps.clone()
        taps.copy_(kept.flip(-1))
        found = compare(session, model)
        taps.copy_(kept)
        stale = compare(session, model)
        with jamba.session(PROMPT, cache_salt="mended") as another:
            again = compare(another, model)
    assert stale.first is not None and stale.first.what == "cache"
    data = json.loads(json.dumps(found.data(), allow_nan=False))
    assert data["first"]["layer"] == 2 and data["first"]["name"].endswith("conv1d.weight")
    assert data["summary"] == found.summary
    assert found.summary.startswith("layer 2 (mamba1) is the first to leave 0.0001: model.layers.2")
    assert not found.equal and again.equal
    assert data["first"]["error"] == found.first.error if found.first else False
    text = str(found)
    assert "first" in text and "conv1d.weight" in text and max(map(len, text.splitlines())) <= 100
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(found)
    assert "first" in console.export_text()


def test_comparing_leaves_the_session_and_the_model_as_they_were(jamba: LLM) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(JAMBA)).train()
    sessions = len(jamba.engine.held)
    with jamba.session(PROMPT) as session:
        before = [layer.read() for layer in session.layers]
        compare(session, model)
        after = [layer.read() for layer in session.layers]
        assert len(jamba.engine.held) == sessions + 1
    for one, other in zip(before, after, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    for side in (model, jamba.engine.model):
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in side.modules())
    assert model.training


def test_what_cannot_be_compared_is_refused(llm: LLM, jamba: LLM) -> None:
    with llm.session(PROMPT) as session, jamba.session(PROMPT) as other:
        with pytest.raises(ValueError, match="with the same layers"):
            compare(session, other)
        wrong: Any
        for wrong in (0, -1.0, float("nan"), float("inf"), "x", True):
            with pytest.raises(ValueError, match=f"tolerance={wrong!r} should be a positive"):
                compare(session, session, tolerance=wrong)
        with pytest.raises(ValueError, match="b is a str; should be a session, as llm"):
            compare(session, "gpt2")
        with pytest.raises(ValueError, match="a is a int"):
            compare(3, session)
        with pytest.raises(ValueError, match="Linear has no list of"):
            compare(session, nn.Linear(2, 2))
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(JAMBA))
    with jamba.session() as empty, pytest.raises(ValueError, match="a has no tokens"):
        compare(empty, model)
    request = jamba.add_request([1, 2, 3])
    with jamba.session(PROMPT) as busy:
        _ = busy.logits  # its steps have run the request as well, which goes on
        with pytest.raises(ValueError, match="requests are on their way"):
            compare(busy, model)
    jamba.abort(request)


def test_numbers_that_are_none_are_infinitely_far_off() -> None:
    right = torch.ones(4, 2, 3)
    wrong = right.clone()
    wrong[2, 1, 0] = torch.nan
    found = difference(wrong, right, 1e-4, torch.arange(4), head_axis=1)
    assert found.largest == float("inf") and (found.token, found.head) == (2, 1)
    assert difference(wrong, wrong, 1e-4).error == 0
    assert difference(right[:2], right, 1e-4).error == float("inf")
    assert difference(right[:0], right[:0], 1e-4).error == 0


def test_the_same_numbers_in_another_form_are_known() -> None:
    right = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert difference(2 * right, right, 1e-4).form == "multiplied"
    assert difference(right.flip(-1), right, 1e-4).form == "reordered"
    assert difference(right + 1, right, 1e-4).form is None
    assert difference(right, right, 1e-4).form is None
