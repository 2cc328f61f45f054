"""`hybridrt plot`, and the page of `hybridrt inspect --html`."""

import sys

import pytest

from .conftest import DEMO

PROMPT = ("--prompt", "amy=372\n" * 6 + "amy?", "--cache-memory", "8MiB")


@pytest.mark.parametrize(("what", "more"), [("memory", ()), ("states", PROMPT), ("pages", PROMPT)])
def test_a_picture_is_written(run, tmp_path, what, more):
    out = tmp_path / "figure.svg"
    said = run("plot", what, DEMO, *more, "--out", out, "--json").json
    assert said == {"file": str(out), "bytes": out.stat().st_size}
    assert "<svg" in out.read_text()


def test_memory_needs_the_config_alone(run, config_only, tmp_path):
    out = tmp_path / "figure.pdf"
    assert f"{out}: " in run("plot", "memory", config_only, "--out", out).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("memory", DEMO, "--out", "figure.jpg"),
            "--out='figure.jpg' should end in one of .svg",
        ),
        (("memory", DEMO, "--out", "nowhere/f.svg"), "there is no folder 'nowhere'"),
        (("states", DEMO, "--out", "figure.svg"), "needs a --prompt or --token-ids\n"),
        (("pages", DEMO, "--out", "f.svg", "--prompt", "a", "--token-ids", "1"), "and not both"),
    ],
)
def test_user_errors(run, arguments, message):
    done = run("plot", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_without_matplotlib_it_is_said_before_a_model_is_loaded(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run("plot", "pages", "nowhere", "--prompt", "a", "--out", "f.svg")
    assert done.code == 2 and "pip install 'hybridrt[viz]'" in done.err


def test_inspect_writes_a_page_of_a_run(run, tmp_path):
    html = tmp_path / "report.html"
    said = run("inspect", DEMO, *PROMPT, "--html", html, "--json").json
    assert said == {"file": str(html), "bytes": html.stat().st_size}
    page = html.read_text(encoding="utf-8")
    for section in ("stack", "memory", "map", "states", "half-life", "attention"):
        assert f'<section id="{section}"' in page
    assert "457,496" in page


def test_inspect_writes_a_page_of_a_config_alone(run, config_only, tmp_path):
    html = tmp_path / "report.html"
    assert f"{html}: " in run("inspect", config_only, "--html", html).out
    page = html.read_text(encoding="utf-8")
    assert '<section id="memory"' in page and '<section id="map"' not in page
