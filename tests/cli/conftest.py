"""The command line, called in this process."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hybridrt import demo
from hybridrt.cli.app import app

DEMO = Path(demo.__file__).parent


class Outcome:
    """What a command printed, and how it ended."""

    def __init__(self, arguments: tuple[Any, ...], stdin: str | None) -> None:
        result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
        # A defect, not an error for a user: show where it is.
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr

    @property
    def lines(self) -> list[Any]:
        """Every line of standard output as JSON."""
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        """Standard output, which is one line of JSON."""
        (line,) = self.lines
        return line


@pytest.fixture
def run() -> Callable[..., Outcome]:
    def run(*arguments: Any, stdin: str | None = None) -> Outcome:
        return Outcome(arguments, stdin)

    return run


@pytest.fixture
def config_only(tmp_path: Path) -> Path:
    """The demo checkpoint without its weights and its tokenizer."""
    shutil.copy(DEMO / "config.json", tmp_path)
    return tmp_path


@pytest.fixture
def chatty(tmp_path: Path) -> Path:
    """The demo checkpoint with a chat template: every message in a line of its own."""
    folder = shutil.copytree(DEMO, tmp_path / "chatty", ignore=shutil.ignore_patterns("*.py"))
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    return folder
