"""Damaged parquet, a few of the many that `scripts/chaos --scenario corruption --kills 500` makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.scenarios.corruption import Batch
from support.damage import plan_damage


@pytest.mark.parametrize("files", [5, pytest.param(30, marks=pytest.mark.long)])
def test_damaged_files_end_as_what_they_decode_to_or_in_quarantine(tmp_path: Path, files: int) -> None:
    batch = Batch(tmp_path, plan_damage(files, seed=1), seed=1)
    batch.run()
    fates = batch.judge()
    assert len(fates) == files
    assert any("quarantined" in fate for fate in fates.values())
