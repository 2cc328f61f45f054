"""The page in a real browser: it renders, its controls work, whoever uses them and however."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import expect

from hybridrt.report.page import report_page
from tests.report.conftest import PROMPT
from tests.report.stand_ins import PERIOD, hand_made_frames, hand_made_trace, plan_of

CHECKS = (Path(__file__).parent / "checks.js").read_text(encoding="utf-8")
"""An object of functions, each of which says what is wrong with a page."""


@pytest.fixture(params=["light", "dark"])
def scheme(request):
    return request.param


def test_every_figure_is_drawn(open_page, demo_page):
    page = open_page(demo_page).page
    assert page.locator("main section").count() == 6
    assert page.locator("#stack-rows li").count() == 7
    assert page.locator("#memory-chart polyline").count() == 4
    for key in ("states", "half-life", "attention"):
        assert page.locator(f"#{key} svg rect").count() > 8
    colours = page.evaluate(
        """() => { const c = document.getElementById("map-canvas");
        const pixels = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        return new Set(new Uint32Array(pixels.buffer)).size; }"""
    )
    assert colours > 5


def test_hostile_text_is_shown_as_it_is(open_page, demo_page):
    page = open_page(demo_page)
    assert page.text(".prompt pre").strip() == PROMPT.strip()
    assert page.page.locator("body b").count() == 0


def test_the_slider_moves_the_map_by_arrow_keys(open_page, demo_page):
    page = open_page(demo_page)
    page.page.focus("#map-slider")
    page.page.keyboard.press("Home")
    before, picture = page.text("#map-text"), _picture(page)
    for _ in range(3):
        page.page.keyboard.press("ArrowRight")
    assert page.text("#map-step").startswith("3 of ")
    assert page.text("#map-text") != before and "first has 0 of its" in page.text("#map-text")
    assert _picture(page) != picture
    assert "step 3" in (page.page.get_attribute("#map-canvas", "aria-label") or "")
    page.page.keyboard.press("End")
    last, _, of = page.text("#map-step").partition(" of ")
    assert last == of
    page.page.locator("#map summary").click()
    page.page.locator("#map-table tr").first.wait_for()  # it is made when the table is opened
    free = [row.split("\t") for row in page.page.locator("#map-table").inner_text().splitlines()]
    assert [row[0] for row in free] == ["state", "full"] and all(row[1] == "0" for row in free)


def test_play_runs_and_pause_stops(open_page, demo_page):
    page = open_page(demo_page)
    page.page.focus("#map-slider")
    page.page.keyboard.press("Home")
    play = page.page.locator("#map-play")
    play.focus()
    page.page.keyboard.press("Enter")
    assert play.text_content() == "Pause"
    expect(page.page.locator("#map-step")).not_to_have_text(re.compile("^0 of"))
    page.page.keyboard.press("Space")
    stopped = page.text("#map-step")
    assert play.text_content() == "Play"
    page.page.wait_for_timeout(600)
    assert page.text("#map-step") == stopped


def test_the_theme_follows_the_system_and_the_button(open_page, demo_page):
    for first, other in (("light", "dark"), ("dark", "light")):
        page = open_page(demo_page, color_scheme=first).page
        ground = "getComputedStyle(document.body).backgroundColor"
        before, picture = page.evaluate(ground), page.locator("#map-canvas").screenshot()
        assert page.evaluate("document.documentElement.dataset.theme") == first
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") == other
        assert page.evaluate(ground) != before
        assert page.locator("#map-canvas").screenshot() != picture


def test_layers_are_gone_through_by_keyboard(open_page, demo_page):
    page = open_page(demo_page)
    page.page.locator("#stack-lengths input").first.focus()
    page.page.keyboard.press("Tab")
    assert "mamba1" in page.text("#layer-details")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowDown")
    assert "model.layers.2.mixer" in page.text("#layer-details")
    assert "kv  2\u00d716\u00d764  float32" in page.text("#layer-details")
    page.page.keyboard.press("End")
    assert "Caches nothing" in page.text("#layer-details")
    assert page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.page.locator("#stack-rows [tabindex='0']").count() == 1


def test_bars_follow_the_length(open_page, demo_page):
    page = open_page(demo_page)
    bytes_of = page.page.locator("#stack-rows .bytes")
    before = bytes_of.all_text_contents()
    page.page.locator("#stack-lengths label").last.click()
    after = bytes_of.all_text_contents()
    assert [a != b for a, b in zip(before, after, strict=True)] == [
        False, False, True, False, True, False, False,
    ]  # fmt: skip
    assert after[2] == "1.0 MiB"


def test_memory_is_read_off_with_the_slider(open_page, demo_page, demo_llm):
    page = open_page(demo_page)
    page.page.focus("#memory-slider")
    page.page.keyboard.press("Home")
    assert "At 16 tokens" in page.text("#memory-reading")
    page.page.keyboard.press("ArrowRight")
    taken = f"{demo_llm.plan.bytes_for(32) / 1024:.1f} KiB"
    assert f"At 32 tokens this model takes {taken}" in page.text("#memory-reading")


def test_heat_maps_are_read_by_keys_and_pointer_and_as_tables(open_page, demo_page, demo_run):
    trace = demo_run[1]
    page = open_page(demo_page)
    page.page.focus("#half-life svg")
    page.page.keyboard.press("ArrowRight")
    assert re.search(r"layer 0 mamba1, head 0: [\d.]+$", page.text("#half-life-reading"))
    page.page.select_option("#states .heat-layer", label="layer 1 (mamba2)")
    page.page.focus("#states svg")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowDown")
    said = page.text("#states-reading")
    assert f"head 1, position {trace.positions[0]}: " in said
    shown = float(said.rpartition(" ")[2])
    assert shown == pytest.approx(trace.statistics[1]["state_norm"][0, 1], rel=1e-3)
    page.page.select_option("#attention .heat-statistic", label="Attention on the own token")
    page.page.locator("#attention summary").click()
    rows = page.page.locator("#attention tbody tr")
    rows.first.wait_for()  # they are made when the table is opened
    assert rows.count() == 2
    page.page.locator("#attention svg").hover()
    assert "Attention on the own token, layer" in page.text("#attention-reading")


def test_everything_has_a_name_and_headings_are_in_order(open_page, demo_page):
    page = open_page(demo_page).page
    assert check(page, "unnamed") == []
    assert check(page, "brokenReferences") == []
    levels = page.evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map((e) => Number(e.tagName[1]))"
    )
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert page.get_attribute("html", "lang") == "en"
    assert page.evaluate("[...document.querySelectorAll('th')].every((e) => e.scope)")


def test_text_can_be_read_on_its_ground(open_page, demo_page, scheme):
    checked, low = check(open_page(demo_page, color_scheme=scheme).page, "lowContrasts")
    assert checked > 150 and low == []


def test_paper_is_white_and_without_controls(open_page, demo_page):
    page = open_page(demo_page, color_scheme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#map-play").is_visible()
    assert page.locator("#map-canvas").is_visible()


@pytest.mark.parametrize("width", [390, 1180])
def test_nothing_is_wider_than_the_window(open_page, demo_page, width):
    page = open_page(demo_page, viewport={"width": width, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_48_layer_model_is_drawn(open_page, tmp_path):
    planned = plan_of([layer for _ in range(6) for layer in PERIOD], tmp_path, memory=2**36)
    path = tmp_path / "large.html"
    frames, trace = hand_made_frames(planned, 12), hand_made_trace(planned, 24, 128)
    path.write_text(report_page("large", planned, {}, frames=frames, trace=trace), encoding="utf-8")
    page = open_page(path).page
    assert page.locator("#stack-rows li").count() == 48
    assert page.locator("#states tbody").count() == 0  # tables are made when they are opened
    page.select_option("#states .heat-layer", index=1)
    assert page.locator("#states svg rect").count() == 64 * 24 + 1
    page.focus("#half-life svg")
    page.keyboard.press("ArrowRight")
    assert "for ever" in (page.text_content("#half-life-reading") or "")


def check(page, name):
    return page.evaluate(f"({CHECKS}).{name}()")


def _picture(page):
    return page.page.locator("#map-canvas").screenshot()
