"""kill -9 on the data's way, a few of the many that `scripts/chaos --scenario data --scenario shard` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.driver import run_scenario
from chaos.scenarios.data import DataScenario
from chaos.scenarios.shard import ShardScenario


@pytest.mark.long
def test_shard_sets_come_out_the_same_through_any_kill_of_daemons_and_workers(tmp_path: Path) -> None:
    report = run_scenario(DataScenario(), kills=12, seed=1, directory=tmp_path)
    print(report.table())
    assert report.kills + report.skipped >= 9


@pytest.mark.parametrize(("kills", "files"), [(2, 3), pytest.param(12, 8, marks=pytest.mark.long)])
def test_the_loop_that_lives_on_loses_nothing_to_kills_inside_calls(
    tmp_path: Path, kills: int, files: int
) -> None:
    report = run_scenario(ShardScenario(files), kills=kills, seed=2, directory=tmp_path)
    print(report.table())
    assert report.kills + report.skipped >= kills * 3 / 4
