"""What engines write for `hybridrt top`: whole files, private, gone when the engine is."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridrt import LLM, EngineConfig, SamplingParams
from hybridrt.introspection import published
from hybridrt.introspection.published import Publisher, read_published, runtime_folder

SECRET = "amy=372"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "hybridrt"


def test_an_engine_writes_its_numbers_and_no_text_and_takes_them_away(folder: Path) -> None:
    llm = LLM("demo", cache_memory="8MiB", max_model_len=256, publish_stats=True)
    (idle,) = read_published()
    assert (idle["pid"], idle["model"], idle["now"]["step"]) == (os.getpid(), "demo", 0)
    llm.generate(f"{SECRET}\namy?", SamplingParams(temperature=0, max_tokens=4))
    llm.engine.stats_recorder.add_row(0.0)
    (file,) = folder.iterdir()
    text = file.read_text()
    assert SECRET not in text and "amy" not in text
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    (seen,) = read_published()
    assert seen["total"] == llm.stats()["total"] and seen["bytes"] == llm.stats()["bytes"]
    del llm
    gc.collect()
    assert not any(folder.iterdir()) and read_published() == []


def test_nothing_is_written_unless_asked_for(folder: Path) -> None:
    llm = LLM("demo", cache_memory="8MiB", max_model_len=256)
    llm.generate("amy?", SamplingParams(max_tokens=1))
    assert not folder.exists()


def test_the_environment_decides_where_no_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not EngineConfig(model="x").publish_stats
    monkeypatch.setenv("HYBRIDRT_PUBLISH_STATS", "1")
    assert EngineConfig(model="x").publish_stats
    assert not EngineConfig(model="x", publish_stats=False).publish_stats
    monkeypatch.setenv("HYBRIDRT_PUBLISH_STATS", "yes")
    with pytest.raises(ValueError, match="HYBRIDRT_PUBLISH_STATS='yes' should be 0 or 1"):
        EngineConfig(model="x")


def test_several_engines_of_a_process_have_a_file_each(folder: Path) -> None:
    both = [Publisher({"model": name}) for name in "ab"]
    for publisher in both:
        publisher.write({}, {})
    assert [engine["model"] for engine in read_published()] == ["a", "b"]
    for publisher in both:
        publisher.close()
    assert read_published() == []


def test_files_of_processes_that_are_gone_are_cleaned_up(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    gone, publisher = int(done.stdout), Publisher({})
    publisher.write({}, {})
    about = json.loads(publisher.path.read_text())
    dead, reused, foreign = folder / f"{gone}.json", folder / "1.json", folder / "note.json"
    dead.write_text(json.dumps(about | {"pid": gone}))
    reused.write_text(json.dumps(about | {"process_started": 5.0}))  # the number is another's now
    foreign.write_text("not JSON")
    assert [engine["pid"] for engine in read_published()] == [os.getpid()]
    assert not dead.exists() and not reused.exists() and foreign.exists()
    publisher.close()


def test_a_folder_that_others_can_read_is_not_used(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    publisher = Publisher({})
    for _ in range(2):
        publisher.write({}, {})  # which disturbs nobody
    assert not any(folder.iterdir()) and read_published() == []
    assert len(caplog.records) == 1 and "mode 0700" in caplog.text


def test_a_full_disk_disturbs_no_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    llm = LLM("demo", cache_memory="8MiB", max_model_len=256, publish_stats=True)

    def fails(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(published.Path, "write_text", fails)
    llm.engine.stats_recorder.add_row(0.0)
    llm.engine.stats_recorder.add_row(0.0)
    assert caplog.text.count("No space left on device") == 1


def test_a_forked_child_leaves_the_file_of_its_parent(folder: Path) -> None:
    publisher = Publisher({})
    publisher.write({"step": 1}, {})
    pid = os.getpid()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: pid + 1)
        publisher.write({"step": 2}, {})
        published._remove(publisher.path, pid)
    assert read_published()[0]["now"] == {"step": 1}
    publisher.close()


def test_without_a_runtime_folder_it_is_one_of_the_user_in_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(published.tempfile, "gettempdir", lambda: str(tmp_path))
    assert runtime_folder() == tmp_path / f"hybridrt-{os.getuid()}"
