"""The live scenario, run once for all tests; each process asks a Prometheus of its own about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from support.live_scenario import PIPELINE, make_live_scenario
from support.once import made_once
from support.prometheus import DEPLOY, Prometheus


@dataclass(frozen=True)
class Live:
    """The scenario of `pipeline` between two Unix times, with the rules and metric names at its end."""

    prometheus: Prometheus
    pipeline: str
    began: float
    ended: float
    rules: list[dict[str, Any]]
    names: list[str]


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """What Prometheus recorded of it; it scrapes nothing more, and its last samples hold for an hour."""
    made = made_once(tmp_path_factory, "live-scenario", make_live_scenario)
    home = tmp_path_factory.mktemp("live")
    shutil.copytree(made / "prometheus" / "data", home / "data")
    told = json.loads((made / "scenario.json").read_text())
    with Prometheus(home, rules=None, consoles=DEPLOY / "consoles", lookback="1h") as prometheus:
        yield Live(prometheus, PIPELINE, **told)
