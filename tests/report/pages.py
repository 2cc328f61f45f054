"""Report pages for the tests and for the pictures in the docs, and a browser to look at them."""

import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from hybridrt import LLM
from hybridrt.cli.parts import model_parts
from hybridrt.report.page import report_page

CHROMIUM_OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """The system's Chromium, under the names that systems give it."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def demo_report(llm: LLM, frames: Any, trace: Any, prompt: str) -> str:
    """The page of the demo checkpoint, without its CLI."""
    return report_page(
        "demo",
        llm.plan,
        {"model type": "hybrid_stack", "dtype": "float32"},
        parts=model_parts(llm.engine.model, llm.plan),
        longest=llm.max_model_len,
        prompt=prompt,
        frames=frames,
        trace=trace,
    )


class OpenPage:
    """A file in a browser. `problems` are its errors; `requests` what else it asked for."""

    def __init__(self, browser: Browser, path: Path, **options: Any) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        viewport = {"width": 1180, "height": 900}
        self._context = browser.new_context(**({"viewport": viewport} | options))
        self.page: Page = self._context.new_page()
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        address = path.as_uri()
        self.page.on("request", lambda request: self._note(request.url, address))
        self.page.goto(address)

    def _note(self, url: str, address: str) -> None:
        if url != address and not url.startswith("data:"):
            self.requests.append(url)

    def text(self, selector: str) -> str:
        """What an element says."""
        return self.page.text_content(selector) or ""

    def close(self) -> None:
        """Closes it with all that it kept."""
        self._context.close()
