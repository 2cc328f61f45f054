"""A saved session goes on elsewhere as it does here, and one that was damaged doesn't load."""

import hashlib
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from hybridrt import LLM
from hybridrt.cache.slabs import OutOfPages
from tests.engine.small import save_checkpoint
from tests.oracle.checkpoints import tiny_checkpoint
from tests.session.open_sessions import (
    DRAWN,
    EVERY_KIND,
    EVERY_STATE,
    MODELS,
    OTHER,
    PROMPT,
    cold,
    nothing_left,
    open_llm,
)

ROOT = Path(__file__).parents[2]
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
    for name in (EVERY_KIND, EVERY_STATE):
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
    with open_llm(EVERY_STATE).load_session(names[1][1] + ".after") as session:
        before = session.token_ids
        assert session.generate(DRAWN).outputs[0].token_ids == cold(EVERY_STATE, before, DRAWN)


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


def _truncated(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.choice([draw.randrange(len(content)), draw.randrange(9000)])]


def _bit_flipped(content: bytes, draw: random.Random) -> bytes:
    end = draw.choice([8, 8 + int.from_bytes(content[:8], "little"), len(content)])
    changed = bytearray(content)
    changed[draw.randrange(end)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _zeroed(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(8, len(content) - 64)
    return (
        content[:start]
        + bytes(b ^ 0x55 for b in content[start : start + 64])
        + content[start + 64 :]
    )


def _lengthened(content: bytes, draw: random.Random) -> bytes:
    return content + draw.randbytes(draw.randrange(1, 50))


@pytest.mark.parametrize("damage", [_truncated, _bit_flipped, _zeroed, _lengthened])
def test_a_damaged_file_is_refused_and_nothing_of_it_loads(
    llm: LLM, saved: Path, tmp_path: Path, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    """60 files in each of four ways."""
    content, path = saved.read_bytes(), tmp_path / "damaged"
    draw = random.Random(damage.__name__)
    with nothing_left(llm):
        for _ in range(60):
            path.write_bytes(damage(content, draw))
            with pytest.raises(
                ValueError, match=r"damaged: (truncated|corrupt|not a|a session of)"
            ):
                llm.load_session(path)


def _edit(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], sign: bool) -> None:
    """Edits header and metadata as somebody who knows the format would."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header["__metadata__"]
    change(header, metadata)
    if sign:
        metadata["header_sha256"] = "0" * 64
        digest = hashlib.sha256(json.dumps(header, separators=(",", ":")).encode()).hexdigest()
        metadata["header_sha256"] = digest
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


EDITS: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], Any], str]] = {
    "version": (lambda h, m: m.update(version="2"), "version '2'; this is read: '1'"),
    "format": (lambda h, m: m.update(format="pt"), "not a saved session: .* format 'pt'"),
    "no metadata": (lambda h, m: h.pop("__metadata__"), "not a saved session"),
    "missing key": (lambda h, m: m.pop("fingerprint"), "corrupt metadata: has the keys"),
    "more keys": (lambda h, m: m.update(more="1"), "corrupt metadata: has the keys"),
    "number": (lambda h, m: m.update(cache_salt=1), "corrupt metadata"),
    "no json": (lambda h, m: m.update(fingerprint="{"), "corrupt metadata: fingerprint"),
    "list": (lambda h, m: m.update(sha256="[]"), "corrupt metadata: sha256 should be"),
    "salt": (lambda h, m: m.update(cache_salt='{"salt": 1}'), "cache_salt=1 should be text"),
    "other model": (
        lambda h, m: m.update(fingerprint='{"config.json": "x"}'), r"config\.json differs: x, here",
    ),
    "name": (lambda h, m: h.update(x=h.pop("pages.state")), "corrupt header: 'pages.full' is"),
    "checksums": (lambda h, m: m.update(sha256='{"logits": "0"}'), "corrupt: checksums of"),
    "dtype": (lambda h, m: h["logits"].update(dtype="I64"), "corrupt header: 'logits' is"),
    "shape": (lambda h, m: h["token_ids"].update(shape=[-37]), "corrupt header: 'token_ids' is"),
    "offsets": (lambda h, m: h["logits"].update(data_offsets=[0, 524]), "corrupt header: 'logits'"),
    "fewer tokens": (
        lambda h, m: h["logits"].update(shape=[2, 131 // 2]), "corrupt header: 'logits' is",
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_header_is_refused_by_what_is_wrong(
    llm: LLM, saved: Path, tmp_path: Path, edit: str
) -> None:
    change, message = EDITS[edit]
    path = tmp_path / "edited"
    with nothing_left(llm):
        for sign in (True, False) if edit != "no metadata" else (False,):
            path.write_bytes(saved.read_bytes())
            _edit(path, change, sign)
            if not sign:
                message = rf"{message}|doesn't match its header_sha256"
            with pytest.raises(ValueError, match=message):
                llm.load_session(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_size": 8}, r"layers\.\d.* differs: .*'page_size': 4"),
        ({"kernel_block_size": 2}, r"layers\.\d.* differs: .*'kernel_block_size': 4"),
        ({"state_dtype": "bfloat16"}, r"layers\.0.* differs"),
        ({"dtype": "bfloat16"}, r"layers\.0.* differs"),
        ({"kv_cache_dtype": "fp8_e4m3"}, r"layers\.\d.* differs"),
        ({"kv_layout": "NHD"}, "differs"),
        ({"max_model_len": 36}, "37 tokens; at most max_model_len=36 fit"),
    ],
)
def test_other_formats_are_refused_by_name(
    saved: Path, options: dict[str, Any], message: str
) -> None:
    other = open_llm(EVERY_KIND, **options)
    with nothing_left(other), pytest.raises(ValueError, match=message):
        other.load_session(saved)


def test_a_layout_of_equal_shape_is_refused_too(tmp_path: Path) -> None:
    """With as many heads as tokens in a block HND and NHD have one shape."""
    path = tmp_path / "session"
    with open_llm(EVERY_KIND, page_size=2).session(PROMPT) as session:
        session.save(path)
    other = open_llm(EVERY_KIND, page_size=2, kv_layout="NHD")
    with nothing_left(other), pytest.raises(ValueError, match="kv_layout differs: HND, here NHD"):
        other.load_session(path)


def test_other_files_of_the_model_are_refused_by_name(tmp_path: Path) -> None:
    options: dict[str, Any] = {"page_size": 4, "cache_memory": "300KiB", "device": "cpu"}
    checkpoint = save_checkpoint(tmp_path / "model")
    with LLM(str(checkpoint), **options).session("some text") as session:
        session.save(tmp_path / "session")
    weights = checkpoint / "model.safetensors"
    for file, change in (
        (checkpoint / "tokenizer.json", lambda raw: raw + b" "),
        (weights, lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])),
        (checkpoint / "config.json", lambda raw: raw.replace(b"128", b"129")),
    ):
        before = file.read_bytes()
        file.write_bytes(change(before))
        other = LLM(str(checkpoint), **options)
        with nothing_left(other), pytest.raises(ValueError, match=f"{file.name} differs"):
            other.load_session(tmp_path / "session")
        file.write_bytes(before)
    LLM(str(checkpoint), **options).load_session(tmp_path / "session").close()


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
