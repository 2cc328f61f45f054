"""A saved session that was damaged, edited, or comes from elsewhere is refused by its name."""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridrt import LLM
from tests.engine.small import save_checkpoint
from tests.session.open_sessions import (
    CHUNKS,
    EVERY_KIND,
    LONGROPE,
    MODELS,
    PROMPT,
    WINDOWS,
    nothing_left,
    open_llm,
)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return open_llm(EVERY_KIND)


@pytest.fixture(scope="module")
def saved(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "session.safetensors"
    with llm.session(PROMPT, cache_salt="salt") as session:
        session.save(path)
    return path


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


def test_a_session_of_any_model_is_refused_by_every_other(tmp_path: Path) -> None:
    """72 files, each with its name and what differs."""
    names = (*MODELS, WINDOWS, CHUNKS, LONGROPE, "llama-grouped-heads")
    llms = {name: open_llm(name) for name in names}
    for name, llm in llms.items():
        with llm.session(PROMPT) as session:
            session.save(tmp_path / name)
    for name, llm in llms.items():
        for other in names:
            if other != name:
                with (
                    nothing_left(llm),
                    pytest.raises(ValueError, match=rf"{other}: .* config\.json differs"),
                ):
                    llm.load_session(tmp_path / other)


def test_every_entry_of_the_fingerprint_counts(llm: LLM, saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    fingerprint = json.loads(metadata["fingerprint"])
    assert {"config.json", "model.safetensors", "kv_layout"} < fingerprint.keys()
    for number, name in enumerate(fingerprint):
        path = tmp_path / f"edited {number}"
        path.write_bytes(content)
        changed = json.dumps({**fingerprint, name: "another"})
        _edit(path, lambda h, m, new=changed: m.update(fingerprint=new), True)
        with nothing_left(llm), pytest.raises(ValueError, match=f"edited {number}: .*differs"):
            llm.load_session(path)
