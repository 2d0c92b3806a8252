"""The average of the weights through the real supervisor: kill -9, a replay, off and on."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.kit.process import signal_process
from stoker.store.record import read_record
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


def test_an_average_switched_on_is_an_event_and_in_the_log_of_launches(
    shard_sets: Path, tmp_path: Path
) -> None:
    for steps, ema in ((10, None), (20, {"decay": 0.5})):
        run = make_training(shard_sets, tmp_path / "run", train__steps=steps, train__ema=ema)
        assert run.once().returncode == 0
        assert ("ema" in read_record(run.run.launch)) == bool(ema)
    (event,) = run.events("ema_changed")
    told = {name: event[name] for name in ("step", "change", "decay", "every", "from_step")}
    assert told == {"step": 10, "change": "begun", "decay": 0.5, "every": 1, "from_step": 2000}
    lines = [json.loads(line)["settings"] for line in run.run.launches.read_text().splitlines()]
    off, on = (next(each for each in lines if each["steps"] == steps) for steps in (10, 20))
    assert "ema" not in off and on["ema"] == read_record(run.run.launch)["ema"]
