"""A kind of source is added by its row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.sites import write_site
from support.small_server import small_server
from support.watchdogs import WATCHDOG, from_urls, landed

ROW = """
from stoker.config.sources import SOURCES
from support.manifest_worker import MANIFEST
SOURCES["manifest"] = MANIFEST
"""


def test_a_kind_of_source_is_listed_and_fetched_by_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    write_site(site, ROW)
    monkeypatch.setenv("PYTHONPATH", f"{site}:{Path(__file__).parents[1]}")
    data = from_urls(tmp_path / "home", [])
    data.file.write_text(data.file.read_text().replace("kind: urls", "kind: manifest"))
    with small_server(lambda request: request.say(request.path.encode())) as server:
        listed = [
            {"key": f"{one}.bin", "size": 2, "url": f"http://127.0.0.1:{server.port}/{one}"} for one in "ab"
        ]
        (data.home / "urls.txt").write_text(json.dumps(listed))
        ended = data.once(WATCHDOG)
    assert ended.returncode == 0, ended.stderr
    assert landed(data) == {"a.bin": b"/a", "b.bin": b"/b"}
