"""The dashboards and the console page are what the list of panels makes, and the list is sound."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).parent.parent.parent
GRAFANA = REPO / "deploy" / "grafana"


@pytest.fixture(autouse=True)
def scripts_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "scripts"))


def test_the_files_are_what_the_list_of_panels_makes() -> None:
    from dashlib.__main__ import made

    differ = [path.name for path, text in made().items() if path.read_text() != text]
    assert not differ, "run scripts/dashboards and commit what it writes"
    assert {path for path in made() if path.suffix == ".json"} == set((GRAFANA / "dashboards").iterdir())


def test_grafanas_own_types_lose_nothing_of_a_dashboard() -> None:
    from dashlib.grafana import encoded
    from grafana_foundation_sdk.models.dashboard import Dashboard

    for path in (GRAFANA / "dashboards").iterdir():
        assert encoded(Dashboard.from_json(json.loads(path.read_text()))) == path.read_text(), path.name


def test_panels_fill_their_rows_and_have_names_of_their_own() -> None:
    from dashlib.boards import BOARDS
    from dashlib.panels import COLUMNS

    for board in BOARDS:
        titles = [panel.title for panel in board.panels]
        assert len(titles) == len(set(titles))
        for row in board.rows:
            at = 0
            for panel in row.panels:
                assert at + panel.width <= COLUMNS, f"{panel.title} does not fit beside those before it"
                at = (at + panel.width) % COLUMNS
            assert at == 0, f"{row.title} of {board.name} leaves a gap"


def test_a_panel_says_what_it_shows_of_the_pipeline_shown() -> None:
    from dashlib.boards import BOARDS

    for panel in (panel for board in BOARDS for panel in board.panels):
        assert panel.description.endswith(".")
        assert panel.thresholds[0][0] is None
        assert bool(panel.columns) == (panel.kind == "table")
        for expr in panel.expressions.values():
            for selector in re.findall(r"(?:stoker_\w+|up)(\{[^}]*\})?", expr):
                assert selector.startswith('{pipeline="$pipeline"'), expr


def test_the_page_knows_every_unit() -> None:
    from dashlib.boards import BOARDS

    script = (REPO / "scripts" / "dashlib" / "console" / "page.js").read_text()
    known = set(re.findall(r"^  (\w+): ", script[script.index("const UNITS") :].split("};")[0], re.M))
    assert {panel.unit for board in BOARDS for panel in board.panels} <= known


def test_the_page_holds_all_it_needs() -> None:
    page = (REPO / "deploy" / "prometheus" / "consoles" / "stoker.html").read_text()
    assert "{{" not in page  # Prometheus would take it for an action of a template
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nothing asks for


def test_grafana_is_told_where_the_dashboards_and_prometheus_are() -> None:
    provisioning = GRAFANA / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "stoker.yaml").read_text())["datasources"][0]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    provider = yaml.safe_load((provisioning / "dashboards" / "stoker.yaml").read_text())["providers"][0]
    assert provider["type"] == "file"
    assert provider["options"]["path"].startswith("/")
