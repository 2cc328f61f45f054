"""`hybridrt top`: another process's engine, seen from here."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hybridrt.cli.errors import INTERRUPTED
from hybridrt.cli.models import load_llm
from hybridrt.cli.options import EngineOptions
from hybridrt.cli.top_view import engine_view

GENERATE = ["generate", "demo", "--prompt-file=PROMPTS", "--max-tokens=1900", "--ignore-eos"]
GENERATE += ["--max-model-len=2048", "--cache-memory=32MiB", "--max-num-seqs=2"]


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    call = [sys.executable, "-m", "hybridrt", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(call, text=True, **pipes)


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """What a condition says when it first says yes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("it took too long")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.delenv("HYBRIDRT_PUBLISH_STATS", raising=False)
        yield folder / "hybridrt"


def test_when_nothing_runs_it_says_so_and_what_to_do(folder: Path, run: Callable[..., Any]) -> None:
    outcome = run("top", "--once")
    assert outcome.code == 2 and outcome.out == ""
    assert "no engine runs" in outcome.err and "HYBRIDRT_PUBLISH_STATS=1" in outcome.err
    assert run("top", "--once", "--json").json == []


def test_a_running_engine_is_seen_and_when_it_is_gone_it_is_not(
    folder: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(f"amy={n}\namy?") + "\n" for n in range(300, 340)))
    arguments = [text.replace("PROMPTS", str(prompts)) for text in GENERATE]
    engine = start(*arguments, stdout=subprocess.DEVNULL)
    try:

        def busy() -> Any:
            found = run("top", "--once", "--json").json
            return [one for one in found if one["now"]["generated_tokens_per_second"] > 0]

        (seen,) = until(busy)
        assert (seen["pid"], seen["model"], seen["device"]) == (engine.pid, "demo", "cpu")
        assert (seen["now"]["running"], seen["now"]["waiting"]) == (2, 38)
        assert seen["now"]["in_use_full"] > 0 and seen["total"]["sequences"] == 2
        assert "amy" not in json.dumps(seen)
        assert run("top", "--once", "--json", f"--pid={engine.pid + 1}").json == []
        shown = run("top", "--once", f"--pid={engine.pid}").out
        assert f"process {engine.pid}" in shown and "2 running, 38 waiting" in shown

        watching = start("top", "--json", "--interval=0.1")
        assert watching.stdout is not None
        lines = [json.loads(watching.stdout.readline()) for _ in range(3)]
        assert [one["pid"] for (one,) in lines] == [engine.pid] * 3
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=60)
        assert watching.returncode == 0 and "Traceback" not in out + err and not err

        engine.send_signal(signal.SIGINT)
        _, err = engine.communicate(timeout=60)
        assert engine.returncode in (INTERRUPTED, -signal.SIGINT), err
        assert not any(folder.iterdir()), "an engine that ends takes its file away"
    finally:
        engine.kill()
        engine.communicate()
    assert run("top", "--once", "--json").json == []


@pytest.mark.parametrize(("text", "publishes"), [(None, True), ("1", True), ("0", False)])
def test_commands_can_be_seen_unless_the_environment_forbids_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, publishes: bool
) -> None:
    if text is not None:
        monkeypatch.setenv("HYBRIDRT_PUBLISH_STATS", text)
    llm = load_llm("demo", EngineOptions(cache_memory="8MiB"))
    assert llm.config.publish_stats == publishes


def test_an_interval_should_be_more_than_nothing(run: Callable[..., Any]) -> None:
    outcome = run("top", "--interval=0")
    assert outcome.code == 2 and "--interval=0.0 should be more than 0" in outcome.err


def large_engine() -> dict[str, Any]:
    """Numbers as large as they come."""
    kinds = {"full": 8e9, "window": 2e9, "state": 3e9}
    groups = [{"name": f"{kind}-4096", "kind": kind, "page_bytes": 1_310_720} for kind in kinds]
    sizes = {
        f"{kind}-4096": {"in_use": int(size), "cached": int(2 * size), "free": int(size / 3)}
        for kind, size in kinds.items()
    }
    return {
        "pid": 4_194_303,
        "started": 1000.0,
        "model": "/a/very/long/path/of/checkpoints/[red]a-model-with-a-long-name",
        "device": "cuda:0",
        "pool_bytes": 64 * 2**30,
        "groups": groups,
        "bytes": {"groups": sizes, "free_slabs": 2**33},
        "cache": {"dropped_pages": 123_456_789},
        "total": {
            "hit_rate": 0.987,
            "prompt_tokens": 12_345_678_901,
            "notes": {"hit": 1_234_567, "no match": 345_678, "evicted": 12_345, "window gone": 123},
        },
        "now": {
            "time": 99_000.0,
            "step": 123_456_789,
            "running": 256,
            "waiting": 12_345,
            "sessions": 1_234,
            "prompt_tokens_per_second": 123_456.7,
            "generated_tokens_per_second": 12_345.6,
            "hit_rate": 0.5,
        },
    }


def lines_of(engine: dict[str, Any], encoding: str = "utf-8", seconds: float = 1) -> list[str]:
    class _File:
        def __init__(self) -> None:
            self.encoding, self.text = encoding, ""

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None:
            pass

    file = _File()
    console = Console(file=file, width=80)  # pyright: ignore[reportArgumentType]
    console.print(engine_view(engine, engine["now"]["time"] + seconds))
    return [line.rstrip() for line in file.text.splitlines()]


def test_it_fits_80_columns() -> None:
    lines = lines_of(large_engine())
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "[red]a-model-with-a-long-name on cuda:0" in text
    assert "256 running, 12,345 waiting" in text and "98.7 %" in text and "evicted 12,345" in text
    assert "123,456.7 of prompts, 12,345.6 generated" in text


def test_bars_are_as_long_as_the_bytes_and_nothing_is_hidden() -> None:
    engine = large_engine()
    engine["pool_bytes"] = 4000
    for sizes in engine["bytes"]["groups"].values():
        sizes |= {"in_use": 1, "cached": 1000, "free": 0}
    engine["bytes"]["free_slabs"] = 2000
    lines = lines_of(engine)
    full = next(line for line in lines if line.startswith("  full"))
    free = next(line for line in lines if line.startswith("  any"))
    assert (full.count("█"), full.count("▒"), full.count("░")) == (1, 9, 0)
    assert free.count("░") == 20


def test_a_terminal_without_blocks_gets_plain_signs() -> None:
    text = "\n".join(lines_of(large_engine(), "ascii"))
    assert "#" in text and "█" not in text.split("full")[1]


def test_an_engine_that_stands_still_says_since_when() -> None:
    engine = large_engine()
    assert "123,456,789, none for 1:05" in "\n".join(lines_of(engine, seconds=65))
    engine["now"] |= {"running": 0, "waiting": 0}
    text = "\n".join(lines_of(engine, seconds=65))
    assert "idle for 1:05" in text and "0.0 generated" in text
