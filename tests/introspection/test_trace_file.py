"""A trace's files: what is written is read, and the index says where everything is."""

import json
import os
import stat
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from hybridrt.introspection.trace import Trace
from tests.session.open_sessions import ATTENTION, EVERY_KIND, EVERY_STATE, PROMPT, open_llm


@pytest.mark.parametrize("name", [EVERY_KIND, EVERY_STATE])
def test_what_was_written_is_read(name: str, tmp_path: Path) -> None:
    with open_llm(name).session() as session:
        trace = session.trace(PROMPT, every=10, path=tmp_path / "a" / "trace", statistics="all")
    found = Trace.load(str(trace.path))
    assert found.complete and found.path == tmp_path / "a" / "trace" and found.every == 10
    assert (found.positions, found.layers) == (trace.positions, trace.layers)
    assert found.layer_names == trace.layer_names and repr(found) == repr(trace)
    for index in trace.layers:
        assert found.statistics[index].keys() == trace.statistics[index].keys()
        for key, values in trace.statistics[index].items():
            assert np.array_equal(found.statistics[index][key], values)
        for position in trace.positions:
            ours, theirs = trace.states(index, position), found.states(index, position)
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())


def test_the_index_says_what_is_where(tmp_path: Path) -> None:
    llm = open_llm(EVERY_STATE)
    with llm.session(PROMPT[:3]) as session:
        session.trace(PROMPT[3:], every=10, path=tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["format"] == "hybridrt trace" and index["complete"] and index["every"] == 10
    assert index["token_ids"] == PROMPT[3:] and index["num_tokens_before"] == 3
    assert index["layers"]["6"]["name"] == llm.plan.layers[6].name
    assert index["layers"]["6"]["mixer"] == "mamba2"
    assert index["layers"]["6"]["tensors"]["ssm_state"] == {
        "axes": ["heads", "head_dim", "state_size"],
        "dtype": "float32",
    }
    assert index["layers"]["0"]["tensors"]["k"]["axes"] == ["tokens", "kv_heads", "head_dim"]
    named = [entry["file"] for kind in ("positions", "tokens") for entry in index[kind]]
    assert {*named, "index.json"} == {file.name for file in tmp_path.iterdir()}
    assert [entry["position"] for entry in index["positions"]] == [10, 20, 30, 37]
    runs = [(entry["start"], entry["stop"]) for entry in index["tokens"]]
    assert runs[0][0] == 3 and runs[-1][1] == 37
    assert all(stop == start for (_, stop), (start, _) in pairwise(runs))
    tensors: dict[str, tuple[int, ...]] = {}
    for name in named:
        with safe_open(tmp_path / name, "pt") as opened:
            tensors |= {key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118
    for layer, about in index["layers"].items():
        for key, tensor in about["tensors"].items():
            assert len(tensors[f"layers.{layer}.{key}"]) == len(tensor["axes"])


def test_without_a_path_there_are_no_states() -> None:
    with open_llm(ATTENTION).session() as session:
        trace = session.trace(PROMPT, layers=[1])
        with pytest.raises(ValueError, match=r"states were not kept; give session.trace a path="):
            trace.states(1, 37)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with open_llm(ATTENTION).session() as session:
        trace = session.trace(PROMPT, layers=[1], path=tmp_path / "trace")
    with pytest.raises(ValueError, match=r"layer=0 was not traced; should be one of \(1,\)"):
        trace.states(0, 37)
    with pytest.raises(ValueError, match=r"position=36 should be one of \(37,\)"):
        trace.states(1, 36)
    with pytest.raises(ValueError, match="holds no trace: it has no index"):
        Trace.load(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        Trace.load(tmp_path)
    (tmp_path / "index.json").write_text('{"format": "another", "version": 1}')
    with pytest.raises(ValueError, match="format and version are"):
        Trace.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.pop("positions"), "it has no positions"),
        (lambda index: index.pop("every"), "it has no every"),
        (lambda index: index.update(every="2"), "every='2' should be an integer"),
        (lambda index: index["layers"]["1"].pop("kind"), r"it has no layers\.1\.kind"),
        (lambda index: index["positions"].append(3), r"it has no positions\.1\.position"),
        (
            lambda index: index["tokens"][0].update(file=None),
            r"tokens\.0\.file=None should be",
        ),
    ],
)
def test_an_index_that_lacks_something_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    with open_llm(ATTENTION).session() as session:
        session.trace(PROMPT, layers=[1], path=tmp_path)
    file = tmp_path / "index.json"
    index = json.loads(file.read_text())
    change(index)
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=f"{file}: is damaged: {message}"):
        Trace.load(tmp_path)


def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        with open_llm(ATTENTION).session() as session:
            session.trace(PROMPT, path=tmp_path)
    finally:
        os.umask(mask)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o640}
