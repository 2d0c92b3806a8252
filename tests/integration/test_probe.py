"""How fast a source sends, measured without keeping anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.data.download import probe
from stoker.corpus.http.client import Manners
from stoker.corpus.http.hub import HubRepo
from support.fetching import hub_file
from support.loopback_hub import REPO, LoopbackHub, noise


def test_the_rate_is_measured_over_what_came_in_time_and_a_refusal_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with LoopbackHub(tmp_path / "hub") as hub:
        manners = Manners(20.0, 20.0, HubRepo(REPO, "dataset", hub.endpoint))
        files = [hub_file(hub, f"{i}.parquet", noise(100_000, i)) for i in range(2)]
        found = probe(files, 60.0, manners)
        assert (found.bytes, found.failure) == (200_000, None) and 0 < found.seconds < 60
        hub.fault("stall", path="0.parquet", after=50_000)
        found = probe(files[:1], 2.0, manners)
        assert found.bytes <= 50_000 and found.failure is None
        hub.control("set", gated={f"dataset/{REPO}": "secret"})
        found = probe(files, 60.0, manners)
        assert found.bytes == 0 and found.failure is not None and found.failure.kind == "gated"
