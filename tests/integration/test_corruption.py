"""Damaged parquet, a few of the many that `scripts/chaos --scenario corruption --kills 500` makes."""

from __future__ import annotations

from pathlib import Path

from chaos.driver import run_scenario
from chaos.scenarios.corruption import CorruptionScenario


def test_damaged_files_end_as_what_they_decode_to_or_in_quarantine(tmp_path: Path) -> None:
    report = run_scenario(CorruptionScenario(), kills=10, seed=1, directory=tmp_path)
    print(report.table())
    assert len(report.hits) == 10
    assert any("quarantined" in str(hit.phase) for hit in report.hits)
