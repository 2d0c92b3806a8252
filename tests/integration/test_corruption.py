"""Damaged parquet, a few of the many that `scripts/chaos --scenario corruption --kills 500` makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.driver import run_scenario
from chaos.scenarios.corruption import CorruptionScenario


@pytest.mark.parametrize("files", [5, pytest.param(30, marks=pytest.mark.long)])
def test_damaged_files_end_as_what_they_decode_to_or_in_quarantine(tmp_path: Path, files: int) -> None:
    report = run_scenario(CorruptionScenario(), kills=files, seed=1, directory=tmp_path)
    print(report.table())
    assert len(report.hits) == files
    assert any("quarantined" in str(hit.phase) for hit in report.hits)
