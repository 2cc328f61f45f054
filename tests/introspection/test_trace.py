"""A trace records what fresh sessions would hold, and changes nothing of its own session."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytest import MonkeyPatch
from torch import Tensor

from hybridrt import LLM
from hybridrt.engine import holding_scheduler
from hybridrt.engine.holding_scheduler import HoldingScheduler
from hybridrt.introspection.statistics import ATTENTION_STATISTICS, STATE_STATISTICS
from hybridrt.introspection.trace import Trace
from hybridrt.introspection.trace_file import TraceWriter
from hybridrt.kernels import op
from tests.reuse.cache_checks import assert_pages_are_counted
from tests.session.open_sessions import (
    ATTENTION,
    EVERY_KIND,
    EVERY_STATE,
    GREEDY,
    LONGROPE,
    MAMBA,
    MODELS,
    OTHER,
    PROMPT,
    WINDOWS,
    cold,
    nothing_left,
    open_llm,
)

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
OTHERS = (  # what else there is of kernels, and layers that stand in each other
    "recurrent_gemma-two-recurrent-blocks-to-one-of-attention",
    "xlstm-matrix-memories",
    "rwkv-halved-every-two-layers",
    "zamba-the-block-used-twice",
    "zaya-attention-to-everything",
    "inkling_mm_model-full-attention-between-windows",
    "hy_v4-two-layers-of-four-select",
    "gemma2-windows-in-every-second-layer",
    "minimax_m3_vl_text-three-blocks-of-four-tokens",
    "hybrid_stack-shared-caches",
)

IN_CHUNKS = ("xlstm-matrix-memories", "rwkv-halved-every-two-layers")


def assert_nothing_looks_on(llm: LLM) -> None:
    """No hook on a module, no observer, nobody that records, and no page that isn't accounted."""
    for module in llm.engine.model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    assert op._observer is None and llm.engine._scheduler.recorder is None
    assert_pages_are_counted(llm.engine.pages)


def assert_same(name: str, ours: Tensor, theirs: Tensor) -> None:
    """Bit for bit, but where a kernel computes chunks, which begin anew where a state is kept."""
    if name in IN_CHUNKS:
        torch.testing.assert_close(ours, theirs, **CLOSE)
    else:
        assert torch.equal(ours, theirs)


def assert_same_statistics(ours: Trace, theirs: Trace) -> None:
    assert ours.positions == theirs.positions and ours.layers == theirs.layers
    for index in ours.layers:
        assert ours.statistics[index].keys() == theirs.statistics[index].keys()
        for name, values in ours.statistics[index].items():
            np.testing.assert_allclose(values, theirs.statistics[index][name], **CLOSE)


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_the_session_is_as_after_append_and_its_states_are_recorded(
    name: str, tmp_path: Path
) -> None:
    llm = open_llm(name)
    with nothing_left(llm), llm.session() as session, open_llm(name).session(PROMPT) as plain:
        trace = session.trace(PROMPT, every=5, path=tmp_path / "trace", statistics="all")
        assert trace.positions == (5, 10, 15, 20, 25, 30, 35, 37)
        assert session.token_ids == PROMPT
        assert_same(name, session.logits, plain.logits)
        for index, (ours, theirs) in enumerate(zip(session.layers, plain.layers, strict=True)):
            recorded, given = trace.states(index, len(PROMPT)), theirs.read()
            positions = given.pop("positions", slice(None))
            assert recorded.keys() == given.keys()
            for key, tensor in ours.read().items():
                if key in given:
                    assert_same(name, tensor, given[key])
                    assert torch.equal(recorded[key][positions], tensor), (index, key)
        is_state = {i: llm.plan.layers[i].kind == "state" for i in trace.layers}
        for index, of_layer in trace.statistics.items():
            named = STATE_STATISTICS if is_state[index] else ATTENTION_STATISTICS
            assert of_layer.keys() <= {*named}
            for values in of_layer.values():
                assert values.dtype == np.float32 and len(values) == len(trace.positions)
                assert not np.isnan(values).any()
        assert_nothing_looks_on(llm)
        assert session.generate(GREEDY).outputs[0].token_ids == cold(name, PROMPT, GREEDY)


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_recorded_states_are_those_of_sessions_that_end_there(name: str, tmp_path: Path) -> None:
    llm, other = open_llm(name), open_llm(name, page_size=64)
    with llm.session() as session:
        trace = session.trace(PROMPT, every=9, path=tmp_path / "trace")
    for position in trace.positions:
        with other.session(PROMPT[:position]) as plain:
            for index, layer in enumerate(plain.layers):
                given, recorded = layer.read(), trace.states(index, position)
                positions = given.pop("positions", slice(None))
                for key, tensor in given.items():
                    torch.testing.assert_close(recorded[key][positions], tensor, **CLOSE)


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE, WINDOWS])
def test_behind_tokens_that_it_has_already(name: str, tmp_path: Path) -> None:
    llm = open_llm(name)
    with llm.session(PROMPT[:13]) as session, open_llm(name).session() as whole:
        trace = session.trace(PROMPT[13:], every=8, path=tmp_path / "trace")
        other = whole.trace(PROMPT, every=8, path=tmp_path / "other")
        assert trace.positions == (16, 24, 32, 37)
        for index in trace.layers:
            for ours, theirs in zip(trace.positions, other.positions[1:], strict=True):
                expected = other.states(index, theirs)
                if llm.plan.layers[index].kind != "state":
                    expected = {key: tensor[13:] for key, tensor in expected.items()}
                for key, tensor in trace.states(index, ours).items():
                    torch.testing.assert_close(tensor, expected[key], **CLOSE)
            for key, values in trace.statistics[index].items():
                np.testing.assert_allclose(values[1:], other.statistics[index][key][2:], **CLOSE)
        more = session.trace(OTHER, every=8)
        assert more.positions == (40, 48, 56, 60)
        tokens = PROMPT + OTHER
        assert session.generate(GREEDY).outputs[0].token_ids == cold(name, tokens, GREEDY)


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE, MAMBA])
def test_beside_requests_and_a_session_that_streams(name: str) -> None:
    llm = open_llm(name, max_num_batched_tokens=24)
    alone = open_llm(name, max_num_batched_tokens=24).session().trace(PROMPT, every=4)
    with nothing_left(llm):
        first, second = (llm.add_request(OTHER[i:], GREEDY) for i in range(2))
        with llm.session(PROMPT[5:]) as streaming, llm.session() as session:
            stream = streaming.stream(GREEDY)
            next(stream)
            trace = session.trace(PROMPT, every=4)
            *_, last = stream
            assert last.outputs[0].token_ids == cold(name, PROMPT[5:], GREEDY)
            outputs = {output.request_id: output for output in llm.step()}
            while llm.has_unfinished:
                outputs |= {output.request_id: output for output in llm.step()}
            for request, tokens in ((first, OTHER), (second, OTHER[1:])):
                assert outputs[request].outputs[0].token_ids == cold(name, tokens, GREEDY)
        assert_same_statistics(trace, alone)
    assert_nothing_looks_on(llm)


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
def test_what_the_prefix_cache_has_is_computed_all_the_same(name: str) -> None:
    llm = open_llm(name)
    llm.generate(PROMPT, GREEDY)
    with llm.session() as session, open_llm(name).session() as other:
        assert_same_statistics(session.trace(PROMPT, every=6), other.trace(PROMPT, every=6))
    assert llm.generate(PROMPT, GREEDY)[0].num_cached_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
@pytest.mark.parametrize("every", [1, 3])
def test_a_step_ends_where_there_are_no_pages_for_more_states(
    name: str, every: int, monkeypatch: MonkeyPatch
) -> None:
    expected = open_llm(name).session().trace(PROMPT, every=every)
    monkeypatch.setattr(holding_scheduler, "MOST_TAPS", 2)
    few = open_llm(name)
    assert_same_statistics(few.session().trace(PROMPT, every=every), expected)
    assert_nothing_looks_on(few)


def test_in_a_pool_with_hardly_any_page_left() -> None:
    llm = open_llm(EVERY_STATE, enable_prefix_caching=False)
    expected = llm.session().trace(PROMPT, every=2)
    pools = [llm.session(OTHER) for _ in range(3)]
    held: list[Any] = []
    try:
        while True:
            held.append(pools[0].fork())
            _ = held[-1].logits
    except Exception as error:
        assert type(error).__name__ == "OutOfPages"
    held.pop().close()
    with held.pop() as last:
        last.truncate(0)
        assert_same_statistics(last.trace(PROMPT, every=2), expected)


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE, LONGROPE])
def test_preempted_on_the_way(name: str, monkeypatch: MonkeyPatch) -> None:
    """What was seen is not recorded a second time, and what comes behind it is not missed."""
    llm, schedule, calls = open_llm(name), HoldingScheduler.schedule, iter(range(100))
    expected = open_llm(name).session().trace(PROMPT, every=4)

    def schedule_and_preempt(self: HoldingScheduler) -> Any:
        if next(calls) == 2:
            (running,) = self._running.values()
            assert running.num_computed == 32
            self.preempt(running)
        return schedule(self)

    monkeypatch.setattr(HoldingScheduler, "schedule", schedule_and_preempt)
    with nothing_left(llm), llm.session() as session:
        assert_same_statistics(session.trace(PROMPT, every=4), expected)
        assert next(calls) > 3
        assert session.generate(GREEDY).outputs[0].token_ids == cold(name, PROMPT, GREEDY)


@pytest.mark.parametrize("point", ["write", "kernel", "step"])
def test_broken_off(point: str, monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    """What was written is whole, nothing looks on any longer, and the session goes on."""
    llm, calls = open_llm(EVERY_STATE), iter(range(10**6))
    last = {"write": 4, "kernel": 30, "step": 1}[point]
    owner, method = {
        "write": (TraceWriter, "add_position"),
        "kernel": (op, "_observer"),
        "step": (HoldingScheduler, "commit"),
    }[point]

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == last:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    if point == "kernel":
        import hybridrt.introspection.call_statistics as module

        owner, method = module.CallStatistics, "see"
    original = getattr(owner, method)
    with llm.session() as session:
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, fail_once)
            with pytest.raises(KeyboardInterrupt):
                session.trace(PROMPT, every=3, path=tmp_path / "trace")
        assert_nothing_looks_on(llm)
        found = Trace.load(tmp_path / "trace")
        assert not found.complete and 0 < len(found.positions) < 13
        files = {file.name for file in (tmp_path / "trace").iterdir()}
        assert not any(name.startswith(".") for name in files)
        expected = open_llm(EVERY_STATE).session().trace(PROMPT, every=3)
        for index, of_layer in found.statistics.items():
            for name, values in of_layer.items():
                wanted = expected.statistics[index][name][: len(values)]
                np.testing.assert_allclose(values, wanted, **CLOSE)
        assert session.token_ids == PROMPT
        assert session.generate(GREEDY).outputs[0].token_ids == cold(EVERY_STATE, PROMPT, GREEDY)


def test_states_go_to_files_and_are_not_held(monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    llm = open_llm(EVERY_STATE, max_model_len=256, cache_memory="16MiB")
    held: list[int] = []
    write_index = TraceWriter.write_index

    def count(self: TraceWriter, **kwargs: Any) -> None:
        # By its type, as what a dead proxy of other tests stands for can't be asked.
        tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
        tensors = [tensor for tensor in tensors if not tensor.is_mkldnn]  # of models of other tests
        storages = {tensor.untyped_storage()._cdata: tensor for tensor in tensors}
        held.append(sum(tensor.untyped_storage().nbytes() for tensor in storages.values()))
        write_index(self, **kwargs)

    monkeypatch.setattr(TraceWriter, "write_index", count)
    with llm.session() as session:
        trace = session.trace(PROMPT * 6, every=4, path=tmp_path / "trace")
        states = sum(plan.bytes_per_sequence for plan in llm.plan.layers if plan.kind == "state")
        assert len(held) >= 14 and len(trace.positions) == 56
        assert max(held[2:]) - held[1] < 2 * states  # statistics; the states are 56 times as many


def test_some_layers_and_some_statistics(tmp_path: Path) -> None:
    names = ["half_life", "attention_own"]
    llm = open_llm(EVERY_STATE)
    trace = llm.session().trace(PROMPT, layers=[6, 0, 6], every=10, statistics=names)
    assert trace.layers == (0, 6) and trace.positions == (10, 20, 30, 37)
    assert {i: [*of] for i, of in trace.statistics.items()} == {
        0: ["attention_own"],
        6: ["half_life"],
    }
    nothing = llm.session().trace(PROMPT, layers=[2], statistics=[], path=tmp_path / "states")
    assert nothing.statistics == {2: {}} and nothing.states(2, 37).keys() == {
        "conv_state",
        "ssm_state",
    }
    assert [*llm.session().trace(PROMPT, layers=[]).statistics] == []
    assert "effective_rank" not in llm.session().trace(PROMPT).statistics[6]
    assert_nothing_looks_on(llm)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"layers": [0, 2]}, r"layers=\[2\]: should be in \[0, 2\)"),
        ({"layers": [-1]}, r"layers=\[-1\]"),
        ({"layers": ["0"]}, r"layers=\['0'\]"),
        ({"layers": 1}, "layers=1 should be a list of indices into llm.plan.layers"),
        ({"layers": np.array([0, 2])}, r"layers=\[2\]: should be in"),
        ({"every": 0}, "every=0 should be a number of tokens, at least 1"),
        ({"every": 2.5}, "every=2.5"),
        ({"every": np.int64(0)}, "every=0 should"),
        ({"every": True}, "every=True should"),
        ({"statistics": ["norm"]}, r"statistics=\['norm'\]: should be 'all', or a list of"),
        ({"statistics": "state_norm"}, "statistics='state_norm'"),
        ({"text_or_ids": []}, "no tokens to trace"),
        ({"text_or_ids": [10**6]}, "token id 1000000 should be in"),
        ({"text_or_ids": [5] * 95}, "it can have 96"),
        ({"text_or_ids": {"prompt": "a"}}, "should be a text or token ids"),
        ({"text_or_ids": "a text"}, "needs a tokenizer"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_appended(options: dict[str, Any], error: str) -> None:
    llm = open_llm(ATTENTION)
    with llm.session(OTHER[:3]) as session:
        with pytest.raises(ValueError, match=error):
            session.trace(**{"text_or_ids": PROMPT, **options})
        assert session.token_ids == OTHER[:3]
        assert_nothing_looks_on(llm)


def test_numpys_integers_are_integers() -> None:
    layers: Any = np.arange(2)
    every: Any = np.int64(16)
    with open_llm(ATTENTION).session() as session:
        trace = session.trace(PROMPT, layers=layers, every=every)
    assert repr((trace.positions, trace.layers, trace.every)) == "((16, 32, 37), (0, 1), 16)"


def test_a_path_with_something_in_it_is_refused(tmp_path: Path) -> None:
    session = open_llm(ATTENTION).session()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"path='.*' is not empty"):
        session.trace(PROMPT, path=tmp_path)
    with pytest.raises(ValueError, match=r"path='.*file' is a file"):
        session.trace(PROMPT, path=tmp_path / "file")
    assert not session.num_tokens and (tmp_path / "file").read_text() == "mine"


def test_two_at_once_are_refused(monkeypatch: MonkeyPatch) -> None:
    llm = open_llm(ATTENTION)
    with llm.session() as session, llm.session() as other:
        original = HoldingScheduler.schedule

        def trace_inside(self: HoldingScheduler) -> Any:
            with pytest.raises(RuntimeError, match="a sequence is recorded already"):
                other.trace(PROMPT)
            return original(self)

        monkeypatch.setattr(HoldingScheduler, "schedule", trace_inside)
        assert session.trace(PROMPT).positions == (37,)
        monkeypatch.undo()
        assert not other.num_tokens or other.token_ids == PROMPT
    assert_nothing_looks_on(llm)
