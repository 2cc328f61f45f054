"""What the README and the docs say is so: their examples run, what they name exists.

CONTRIBUTING.md tells how a page marks its blocks.
"""

import contextlib
import importlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from hybridrt import models
from hybridrt.cli.app import app
from hybridrt.kernels import op
from hybridrt.models import hybrid_stack, known_model_types

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
)
OUR_FOLDERS = ("hybridrt", "docs", "tests", "benchmarks", "examples", "training", ".ci")
LEFT_OUT = "..."
"""A line of an expected output that stands for any lines."""


@dataclass(frozen=True)
class Block:
    """A fenced block: the words behind its fence, its text, and its first line's number."""

    words: tuple[str, ...]
    text: str
    line: int

    @property
    def language(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def file(self) -> str | None:
        """The file that the reader is asked to write this to."""
        named = [word.removeprefix("file=") for word in self.words if word.startswith("file=")]
        return named[0] if named else None


def read(page: str) -> str:
    """The text of a page without its comments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    opened: tuple[int, tuple[str, ...]] | None = None
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if opened is None:
            opened = number + 1, tuple(line.removeprefix("```").split())
        else:
            start, words = opened
            found.append(Block(words, "\n".join(lines[start:number]) + "\n", start))
            opened = None
    assert opened is None, f"{page}: a fence is not closed"
    return found


def runs(page: str) -> bool:
    return any("run" in block.words for block in blocks(page))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the demo and examples where a checkout has them; undoes all that is left."""
    (tmp_path / "hybridrt").mkdir()
    (tmp_path / "hybridrt" / "demo").symlink_to(ROOT / "hybridrt" / "demo")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("HYBRIDRT_KERNEL_BLOCK_SIZE", raising=False)
    monkeypatch.setattr(hybrid_stack, "LAYER_TYPES", dict(hybrid_stack.LAYER_TYPES))
    monkeypatch.setattr(models, "_registered", {})
    modules = set(sys.modules)
    known_model_types.cache_clear()
    library = torch.library.Library("hybridrt", "FRAGMENT")  # for the ops that a page adds
    monkeypatch.setattr(op, "LIBRARY", library)
    yield tmp_path
    library._destroy()
    known_model_types.cache_clear()
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            parent, _, child = name.rpartition(".")
            vars(sys.modules[parent]).pop(child, None)
            del sys.modules[name]


def write_file(block: Block, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes a file of ours that isn't there, and lets its package find it."""
    assert block.file is not None
    path = workplace / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")
    package: Any = importlib.import_module(".".join(Path(block.file).parent.parts))
    if str(path.parent) not in package.__path__:
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(path.parent)])
    known_model_types.cache_clear()


def run_python(page: str, block: Block, names: dict[str, Any]) -> str:
    """Runs a block, calls the tests that it defines, and returns what it printed."""
    before = set(names)
    code = compile("\n" * block.line + block.text, str(ROOT / page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    for name in sorted(set(names) - before):
        if name.startswith("test_"):
            names[name]()
    return printed.getvalue()


def run_console(block: Block) -> str:
    """The same block, with what its commands print now."""
    lines: list[str] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            program, *arguments = shlex.split(_unescape(line[2:]))
            assert program == "hybridrt", f"{line}: only hybridrt is run"
            result = CliRunner().invoke(app, arguments, prog_name="hybridrt")
            assert result.exit_code == 0, result.output
            lines += [line, *result.stdout.splitlines()]
    return "\n".join(lines)


def _unescape(line: str) -> str:
    r"""Writes `$'a\nb'`, as bash has it, with the characters that are meant."""
    return re.sub(
        r"\$'([^']*)'", lambda m: shlex.quote(m[1].encode().decode("unicode_escape")), line
    )


def assert_prints(printed: str, expected: str) -> None:
    """Line by line, without blanks at the ends; a line of dots stands for any lines."""
    pattern = ""
    for line in expected.strip().splitlines():
        pattern += r"(?:.*\n)*?" if line.strip() == LEFT_OUT else re.escape(line.rstrip()) + "\n"
    lines = [line.rstrip() for line in printed.strip().splitlines()]
    text = "\n".join(lines) + "\n"
    assert re.fullmatch(pattern, text), f"printed:\n{text}\nthe page has:\n{expected}"


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)])
def test_examples_run_and_print_what_the_page_says(
    page: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": f"examples of {page}"}
    printed: str | None = None
    for block in blocks(page):
        if block.file is not None:
            write_file(block, workplace, monkeypatch)
        elif block.words[:2] == ("text", "output"):
            assert printed is not None, f"{page}, line {block.line}: nothing has run"
            assert_prints(printed, block.text)
        elif block.words[:2] == ("python", "run"):
            printed = run_python(page, block, names)
        elif block.words[:2] == ("console", "run"):
            assert_prints(run_console(block), block.text)
        else:
            assert "run" not in block.words, f"{page}, line {block.line}: can't run {block.words}"


def _code(page: str) -> str:
    """Commands as a page shows them: in blocks for a shell, and between backticks."""
    shown = [block.text for block in blocks(page) if block.language in ("bash", "console")]
    return "\n".join([*shown, *re.findall(r"`([^`\n]+)`", read(page))])


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    for line in re.findall(r"^(?:\$ )?hybridrt (?![-.])(.+)$", _code(page), flags=re.MULTILINE):
        arguments = shlex.split(line, comments=True)
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            name = arguments.pop(0)
            assert name in command.commands, f"{page}: hybridrt {line}"
            command = command.commands[name]
        options = {"--help"}.union(*(parameter.opts for parameter in command.params))
        given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
        assert given <= options, f"{page}: hybridrt {line}: there is no {given - options}"


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^(?:\$ )?make (\w+)", _code(page), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"{page}: make {target}"


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    text = re.sub(r"https?://\S+", "", read(page))
    made = {block.file for block in blocks(page)}
    folders = "|".join(re.escape(folder) for folder in OUR_FOLDERS)
    named = set(re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*\w)", text))
    linked = {
        (Path(page).parent / target.partition("#")[0]).as_posix()
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    }
    missing = {path for path in (named | linked) - made if not (ROOT / path).exists()}
    assert not missing, f"{page} names {sorted(missing)}"


@pytest.mark.parametrize("page", PAGES)
def test_dotted_names_exist(page: str) -> None:
    made = {(block.file or "").removesuffix(".py").replace("/", ".") for block in blocks(page)}
    for name in set(re.findall(r"`(hybridrt(?:\.\w+)+)`", read(page))) - made:
        assert _resolves(name), f"{page}: {name}"


def _resolves(name: str) -> bool:
    first, *rest = name.split(".")
    found: Any = importlib.import_module(first)
    for part in rest:
        first = f"{first}.{part}"
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(first)
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_the_table_has_every_model() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", read("docs/models.md"), re.M)
    assert set(known_model_types()) == set(rows)


def test_every_dependency_has_a_reason() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = "dependencies|cuda|gguf|viz|test|dev"
    lists = re.findall(rf"^(?:{names}) = \[(.*?)\]$", declared, re.M | re.S)
    assert len(lists) == 6
    packages = set(re.findall(r'"([A-Za-z][\w.-]*)', " ".join(lists))) - {"hybridrt"}
    page = read("docs/dependencies.md")
    missing = {name for name in packages if f"| {name} |" not in page}
    assert not missing, f"docs/dependencies.md says nothing of {sorted(missing)}"


def test_the_harness_sees_a_wrong_output() -> None:
    assert_prints("a\nb\nc\n", "a\n...\nc")
    with pytest.raises(AssertionError):
        assert_prints("a\nb\n", "a\nc\n")
    with pytest.raises(AssertionError):
        assert_prints("a\nb\n", "a\n")
