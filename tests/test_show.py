"""How things show themselves, and what a notebook gets of it."""

import io
from html.parser import HTMLParser

import pytest
from rich.console import Console

from hybridrt import LLM, SamplingParams
from hybridrt.show import ShowsItself, as_html, as_text, simple_table


class _Reader(HTMLParser):
    """Checks that tags close in order; collects tags, attributes and cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "br":
            self.open.append(tag)
        if tag in ("td", "th", "caption", "p"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th", "caption", "p"):
            self.cells[-1] += data


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("demo", cache_memory="8MiB", max_model_len=256)


def test_a_table_is_html_with_a_caption_and_scopes_and_all_is_escaped() -> None:
    table = simple_table("A <title>", "name", "size", right=("size",))
    table.add_row("[cyan]x & y[/]", "1\n2")
    page = as_html([table, "a <b> text"])
    found = _Reader(page)
    assert found.cells == ["A <title>", "name", "size", "x & y", "12", "a <b> text"]
    scopes = [attrs.get("scope") for tag, attrs in found.tags if tag == "th"]
    assert scopes == ["col", "col", "row"]
    assert "1<br>2" in page and "<b>" not in page and "script" not in page


def test_html_has_no_colour_of_its_own() -> None:
    table = simple_table("", "name")
    table.add_row("[red]x[/]")
    colours = {
        part.split(":")[1]
        for _, attrs in _Reader(as_html([table])).tags
        for part in (attrs.get("style") or "").split(";")
        if part.startswith(("color", "background"))
    }
    assert colours <= {"inherit", "none"}


def test_text_has_a_line_between_parts_and_fits() -> None:
    table = simple_table("Title", "name")
    table.add_row("x" * 300)
    lines = as_text([table, "a text of [brackets]"], width=60).splitlines()
    assert max(map(len, lines)) == 60 and lines[-2:] == ["", "a text of [brackets]"]


def things(llm: LLM) -> dict[str, tuple[ShowsItself, str]]:
    """What shows itself, and something that it should say."""
    session = llm.session("amy=372\n")
    session.generate(SamplingParams(temperature=0, max_tokens=2))
    return {
        "plan": (llm.plan, "Cache groups"),
        "map": (llm.cache_map(), "shared by several"),
        "session": (session, f"{session.num_tokens} tokens"),
        "state": (session.layers[0], "conv_state"),
        "attention": (session.layers[2], "2x16x64 float32"),
        "closed": (llm.session(), "none"),
    }


@pytest.mark.parametrize("name", ["plan", "map", "session", "state", "attention", "closed"])
def test_everything_shows_itself_as_text_as_a_rich_table_and_in_a_notebook(
    llm: LLM, name: str
) -> None:
    thing, says = things(llm)[name]
    assert says in str(thing)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(thing)
    assert says in console.export_text()
    page = thing._repr_html_()
    assert "<table" in page and any(says in cell for cell in _Reader(page).cells)


def test_what_is_closed_still_shows_itself(llm: LLM) -> None:
    session = llm.session("amy=372\n")
    layer = session.layers[0]
    session.close()
    assert str(session).endswith("is closed") and "is closed" in session._repr_html_()
    assert "the session is closed" in str(layer)


def test_a_plan_explains_itself_as_it_prints(llm: LLM) -> None:
    assert str(llm.plan) == llm.plan.explain()
