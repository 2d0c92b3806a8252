"""Every panel shows something of the live scenario, and the page draws it in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.chromium import Opened, needs_chromium, opened
from support.prometheus import needs_prometheus

pytestmark = needs_prometheus
REPO = Path(__file__).parents[2]
BOARDS = ("overview", "data", "training", "machine")
# Panels that a run of a minute on this machine leaves empty, with the reason.
EXCUSED = {
    "Spill to main memory": "only WSL2 has it",
    **dict.fromkeys(("Evaluations", "Evaluated and promoted"), "no suites: the harness takes too long"),
}


@pytest.mark.parametrize("board", BOARDS)
def test_each_panel_shows_the_live_scenario(live: Any, board: str) -> None:
    dashboard = json.loads((REPO / f"deploy/grafana/dashboards/stoker-{board}.json").read_text())
    for variable in dashboard["templating"]["list"]:
        if variable["name"] == "pipeline":
            variable["current"] = {"text": live.pipeline, "value": live.pipeline}
    for target in (target for panel in dashboard["panels"] for target in panel.get("targets", [])):
        target["expr"] = target["expr"].removesuffix(" > 0")  # that hides what is 0
    wrong = live.prometheus.check_dashboard(dashboard, live.began, live.ended, may_be_empty=EXCUSED)
    assert not wrong, "\n".join(wrong)


def opened_page(live: Any, home: Path, query: str) -> Opened:
    return opened(f"http://{live.prometheus.address}/consoles/stoker.html?{query}", home)


def panels_of(document: str) -> Iterator[tuple[str, str]]:
    """The title and the body of each panel drawn."""
    for section in re.findall(r'<section class="panel .*?</section>', document, re.S):
        found = re.search(r"<h3[^>]*>(.*?)</h3><p>.*?</p><div>(.*)</div></section>", section, re.S)
        assert found
        yield found[1], found[2]


@needs_chromium
@pytest.mark.parametrize("board", BOARDS)
def test_the_page_draws_every_panel_and_asks_no_other_host(live: Any, tmp_path: Path, board: str) -> None:
    page = opened_page(live, tmp_path, f"pipeline={live.pipeline}&board={board}&range=15m")
    assert not page.said
    assert page.hosts == {live.prometheus.address}
    assert 'data-drawn="yes"' in page.document
    assert re.search(r'<p id="trouble"[^>]* hidden', page.document), "a query failed"
    dashboard = json.loads((REPO / f"deploy/grafana/dashboards/stoker-{board}.json").read_text())
    drawn = dict(panels_of(page.document))
    assert list(drawn) == [panel["title"] for panel in dashboard["panels"] if panel["type"] != "row"]
    for body in drawn.values():
        assert re.search(r'class="(value|none|scroll|legend)"|<rect', body)
        assert "NaN" not in body
        assert "undefined" not in body
    if board == "overview":
        assert re.search(r">\d+</span><small>of 3", drawn["Daemons up"])
        assert drawn["Loss"].count('class="line"') == 2


@needs_chromium
def test_the_page_without_a_pipeline_offers_those_there_are(live: Any, tmp_path: Path) -> None:
    page = opened_page(live, tmp_path, "")
    assert not page.said
    assert f"<b>{live.pipeline}</b>" in page.document


@needs_chromium
def test_the_page_takes_no_name_that_a_pipeline_cannot_have(live: Any, tmp_path: Path) -> None:
    page = opened_page(live, tmp_path, "pipeline=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&board=%22%7D")
    assert not page.said
    assert "onerror" not in page.document
    assert f"<b>{live.pipeline}</b>" in page.document  # the choice, as without a name
