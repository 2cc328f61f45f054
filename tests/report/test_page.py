"""The page as a file: whole, small, safe, and reaching for nothing outside it."""

import json
import re

from hybridrt.report.page import report_page
from tests.report.conftest import PROMPT
from tests.report.stand_ins import PERIOD, hand_made_frames, hand_made_trace, plan_of

SIX_TIMES_EIGHT = [layer for _ in range(6) for layer in PERIOD]


def data_of(page):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(found)


def test_a_48_layer_model_stays_far_under_5_mb(tmp_path):
    planned = plan_of(SIX_TIMES_EIGHT, tmp_path, memory=2**36)
    assert len(planned.layers) == 48
    page = report_page(
        "large",
        planned,
        {},
        frames=hand_made_frames(planned, 40),
        trace=hand_made_trace(planned, num_positions=48, num_heads=128),
    )
    assert len(page.encode()) < 5_000_000
    assert len(data_of(page)["stack"]["rows"]) == 48


def test_nothing_is_loaded_from_elsewhere(demo_page):
    page = demo_page.read_text(encoding="utf-8")
    outside = re.sub(re.escape("http://www.w3.org/2000/svg"), "", page)
    assert not re.findall(r"https?:|@import|url\(|<link (?!rel=\"icon\")|\ssrc=", outside)
    assert "default-src 'none'" in page


def test_hostile_text_stays_text(demo_page, tmp_path):
    page = demo_page.read_text(encoding="utf-8")
    assert page.count("</script>") == 2 and PROMPT.partition("\n")[0] not in page
    named = report_page("</script><img src=x>", plan_of(PERIOD, tmp_path), {"<b>": "<i>"})
    assert "<img" not in named and "<i>" not in named and "<b>" not in named


def test_a_plan_alone_has_the_stack_and_memory(tmp_path):
    page = report_page("plan", plan_of(PERIOD, tmp_path), {})
    data = data_of(page)
    assert data["map"] is None and data["heat"] is None
    assert 'id="stack"' in page and 'id="memory"' in page
    assert 'id="map"' not in page and 'class="heat"' not in page
    kinds = [layer["kind"] for row in data["stack"]["rows"] for layer in row["cached"]]
    assert kinds == ["state"] * 3 + ["window"] + ["state"] * 3 + ["full"]


def test_a_very_long_prompt_is_cut_and_says_so(tmp_path):
    page = report_page("plan", plan_of(PERIOD, tmp_path), {}, prompt="x" * 3_000_000)
    assert len(page) < 200_000 and "2,980,000 more characters are not shown" in page


def test_numbers_are_those_of_the_plan(demo_page, demo_llm):
    data = data_of(demo_page.read_text(encoding="utf-8"))
    at = data["memory"]["lengths"].index(1024)
    assert data["memory"]["curves"]["total"][at] == demo_llm.plan.bytes_for(1024)
    cached = [layer for row in data["stack"]["rows"] for layer in row["cached"]]
    assert [layer["name"] for layer in cached] == [layer.name for layer in demo_llm.plan.layers]
    assert len(data["stack"]["rows"]) == 7
