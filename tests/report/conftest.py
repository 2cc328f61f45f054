"""One browser and one report of the demo checkpoint for all tests of the page."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from hybridrt import LLM
from hybridrt.cli.report import recorded
from hybridrt.demo.facts import NAMES
from tests.report.pages import CHROMIUM_OPTIONS, OpenPage, demo_report, find_chromium

HOSTILE = "</script><b>\"&amp;'`${1}\u2028<!--\n"
PROMPT = HOSTILE + "".join(f"{name}={37 * i % 1000:03d}\n" for i, name in enumerate(NAMES[:36]))


@pytest.fixture(scope="session")
def demo_llm() -> LLM:
    return LLM("demo", max_num_batched_tokens=128, cache_memory="16MiB")


@pytest.fixture(scope="session")
def demo_run(demo_llm: LLM) -> Any:
    """Frames and trace of the prompt."""
    return recorded(demo_llm, PROMPT)


@pytest.fixture(scope="session")
def demo_page(demo_llm: LLM, demo_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "demo.html"
    path.write_text(demo_report(demo_llm, *demo_run, prompt=PROMPT), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium. In .ci/run it has to be there.

    Closed behind the module, as no other event loop can run in this thread until then.
    """
    found = find_chromium()
    if found is None and "HYBRIDRT_NEEDS_CHROMIUM" not in os.environ:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    assert found is not None, "no Chromium on this machine: as root, apt-get install chromium"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=CHROMIUM_OPTIONS)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Any]:
    """Opens a file as `OpenPage`; at the end nothing may have gone wrong in it."""
    opened: list[OpenPage] = []

    def open_file(path: Path, **options: Any) -> OpenPage:
        opened.append(OpenPage(browser, path, **options))
        return opened[-1]

    yield open_file
    for page in opened:
        page.close()
        assert page.problems == []
        assert page.requests == []
