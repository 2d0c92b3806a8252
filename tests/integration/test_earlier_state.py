"""A state directory that version 0.1.0 wrote is taken up as it is.

tests/data/state-0.1.0.tar.xz holds a whole pipeline of that version: five source files (one quarantined, one
a duplicate), three shard sets on hot and warm, a run at step 40 of timeline 1 that was rolled back once with
a skip, checkpoints, their mirror, and what was abandoned.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.config.load import load_pipeline
from support.audits import audit_of
from support.pipelines import DataPipeline
from support.training import TrainPipeline

KEPT = Path(__file__).parents[1] / "data" / "state-0.1.0.tar.xz"
LAST_STEP = 60


@pytest.fixture
def kept(tmp_path: Path) -> TrainPipeline:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    file = tmp_path / "kept.yaml"
    return TrainPipeline(DataPipeline(tmp_path, file, load_pipeline(file)), with_torch=True)


def test_the_state_of_version_0_1_0_is_audited_and_trained_on(
    kept: TrainPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, before, rows = kept.data, kept.data.sets(), kept.rows()
    assert data.once("download_watchdog").returncode == 0
    data.build()
    assert data.sets() == before
    assert data.states() == {
        **dict.fromkeys(("0.parquet", "1.parquet", "2.parquet"), "released"),
        "3.parquet": "duplicate",
        "4.parquet": "quarantined",
    }
    ended = kept.once()
    assert ended.returncode == 0, ended.stderr
    assert kept.rows()[: len(rows)] == rows
    assert kept.last_step() == LAST_STEP
    assert [event["resume_step"] for event in kept.events("trainer_launched")][-1] == 40
    (event,) = kept.events("bits_end_here")  # its kernels are no more
    assert event["step"] == 40 and "loss: cross_entropy -> " in event["message"]
    assert exit_code(["replay", str(data.file), "main", str(tmp_path / "out")]) == 78
    assert "their numerics are not on record" in capsys.readouterr().err
    assert audit_of(data.file, deep=True)["findings"] == []
