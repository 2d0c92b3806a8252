"""The average of the weights through the real supervisor: kill -9, and a replay."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.kit.process import signal_process
from support.halting import halts_at, is_halted
from support.processes import wait_gone
from support.training import make_training
from support.waiting import wait_until

EMA = {"decay": 0.9, "every": 2, "from_step": 5}


def test_a_killed_run_has_the_average_of_its_replay(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in halts_at(tmp_path / "halts", [14]).items():
        monkeypatch.setenv(name, value)
    run = make_training(shard_sets, tmp_path / "killed", with_torch=True, train__steps=20, train__ema=EMA)
    daemon = run.start()
    try:
        trainer = run.wait_for_step(14)
        wait_until(lambda: is_halted(trainer.pid), what="step 14")
        signal_process(trainer, signal.SIGKILL)
        wait_gone([trainer])
        wait_until(lambda: run.record().get("state") == "finished", what="the end of the run")
    finally:
        assert daemon.stop() == 0
    assert [event["resume_step"] for event in run.events("trainer_launched")] == [0, 10]
    assert list(run.tensors()) == [f"{stem}-00001.safetensors" for stem in ("ema", "model", "optimizer")]
    assert ["ema_val_loss" in row for row in run.rows() if "val_loss" in row] == [False, True]
    with run.trainer():
        assert exit_code(["replay", str(run.data.file), "main", str(tmp_path / "replay")]) == 0
    assert "3 files of tensors at step 20" in capsys.readouterr().out
