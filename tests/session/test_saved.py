"""A saved session goes on elsewhere as it does here, and one that was damaged doesn't load."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from hybridrt import LLM
from hybridrt.cache.slabs import OutOfPages
from tests.oracle.checkpoints import tiny_checkpoint
from tests.session.open_sessions import (
    ATTENTION,
    CHUNKS,
    DEEPSEEK,
    DRAWN,
    EVERY_KIND,
    LONGROPE,
    MODELS,
    OTHER,
    PROMPT,
    WINDOWS,
    cold,
    nothing_left,
    open_llm,
)

ROOT = Path(__file__).parents[2]
ELSEWHERE = (*MODELS, WINDOWS, CHUNKS, LONGROPE)
ANOTHER_PROCESS = """
import pickle, sys
from hybridrt import LLM

names, options, params, more = pickle.loads(open(sys.argv[1], "rb").read())
tokens = []
for model, file in names:
    session = LLM(model, **options).load_session(file)
    tokens.append([session.generate(params).outputs[0].token_ids])
    session.append(more)
    tokens[-1].append(session.generate(params).outputs[0].token_ids)
    session.save(file + ".after")
open(sys.argv[2], "wb").write(pickle.dumps(tokens))
"""


@pytest.fixture(scope="module")
def llm() -> LLM:
    return open_llm(EVERY_KIND)


@pytest.fixture(scope="module")
def saved(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "session.safetensors"
    with llm.session(PROMPT, cache_salt="salt") as session:
        session.save(path)
    return path


def test_in_another_process_it_goes_on_as_here(tmp_path: Path) -> None:
    names, expected = [], []
    for name in ELSEWHERE:
        file = str(tmp_path / name)
        with open_llm(name).session(PROMPT) as session:
            session.save(file)
            tokens = [session.generate(DRAWN).outputs[0].token_ids]
            session.append(OTHER)
            expected.append([*tokens, session.generate(DRAWN).outputs[0].token_ids])
        names.append((str(tiny_checkpoint(name)), file))
    options = {"page_size": 4, "cache_memory": "1MiB", "max_model_len": 90, "device": "cpu"}
    (tmp_path / "in").write_bytes(pickle.dumps((names, options, DRAWN, OTHER)))
    (tmp_path / "run.py").write_text(ANOTHER_PROCESS)
    command = [sys.executable, tmp_path / "run.py", tmp_path / "in", tmp_path / "out"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, cwd=ROOT, env=env)
    assert pickle.loads((tmp_path / "out").read_bytes()) == expected
    for name, (_, file) in zip(ELSEWHERE, names, strict=True):
        with open_llm(name).load_session(file + ".after") as session:
            before = session.token_ids
            assert session.generate(DRAWN).outputs[0].token_ids == cold(name, before, DRAWN)


@pytest.mark.parametrize(
    ("name", "kv_cache_dtype"),
    [
        (EVERY_KIND, "fp8_e4m3"),
        (WINDOWS, "int8"),
        (ATTENTION, "int8"),
        (ATTENTION, "fp8_e4m3"),
        (DEEPSEEK, "fp8_e4m3"),
    ],
)
def test_what_is_quantised_is_saved_code_by_code(
    tmp_path: Path, name: str, kv_cache_dtype: str
) -> None:
    first, second = (open_llm(name, kv_cache_dtype=kv_cache_dtype) for _ in range(2))
    with first.session(PROMPT) as session:
        session.save(tmp_path / "session")
        with second.load_session(tmp_path / "session") as other:
            for ours, theirs in zip(session.layers, other.layers, strict=True):
                given = theirs.read()
                assert all(torch.equal(tensor, given[key]) for key, tensor in ours.read().items())
            tokens = other.generate(DRAWN).outputs[0].token_ids
            assert tokens == session.generate(DRAWN).outputs[0].token_ids


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [0, 1, 16, 37])
def test_what_is_loaded_is_what_was_saved(tmp_path: Path, name: str, length: int) -> None:
    first, second = open_llm(name), open_llm(name, cache_memory="300KiB", max_num_seqs=3)
    path = tmp_path / "session"
    with first.session(PROMPT[:length], "salt") as session, nothing_left(second):
        session.save(path)
        other = second.load_session(path)
        assert other.token_ids == session.token_ids and other._held.cache_salt == "salt"
        for ours, theirs in zip(session.layers, other.layers, strict=True):
            given = theirs.read()
            for key, tensor in ours.read().items():
                assert torch.equal(tensor, given[key])
        if length:
            assert torch.equal(session.logits, other.logits)
            tokens = other.generate(DRAWN).outputs[0].token_ids
            assert tokens == cold(name, PROMPT[:length], DRAWN)
        other.close()
    assert [file.name for file in tmp_path.iterdir()] == ["session"]


def test_the_file_is_safetensors(saved: Path) -> None:
    tensors = load_file(saved)
    assert tensors["token_ids"].tolist() == PROMPT
    assert {name for name in tensors if name.startswith("pages.")} == {
        "pages.full", "pages.window-6", "pages.chunk-7", "pages.state",
    }  # fmt: skip
    with safe_open(saved, "pt") as file:
        assert file.metadata()["format"] == "hybridrt session"


def test_without_room_nothing_is_loaded(saved: Path) -> None:
    full = open_llm(EVERY_KIND, cache_memory="100KiB", max_model_len=None)
    filling = []
    with pytest.raises(OutOfPages):
        while True:
            filling.append(full.session([len(filling)] * 40))
            _ = filling[-1].logits
    held = len(full.engine.held), len(full.engine.pages)
    with pytest.raises(OutOfPages):
        full.load_session(saved)
    assert held == (len(full.engine.held), len(full.engine.pages))
    for session in filling:
        session.close()
    with full.load_session(saved) as session:
        assert session.generate(DRAWN).outputs[0].token_ids == cold(EVERY_KIND, PROMPT, DRAWN)


def test_a_save_that_fails_leaves_the_file_that_was_there(
    llm: LLM, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "session"
    path.write_bytes(saved.read_bytes())

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with llm.session(OTHER) as session, pytest.raises(OSError, match="disk full"):
        session.save(path)
    assert path.read_bytes() == saved.read_bytes() and len([*tmp_path.iterdir()]) == 1
    with llm.session(OTHER) as session, pytest.raises(OSError):
        session.save(tmp_path / "nowhere" / "session")
    with pytest.raises(OSError):
        llm.load_session(tmp_path / "nowhere")
