"""`stoker rehearse`: real rehearsals, which kill processes of their own; their ends, and what is left."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from stoker.cli.main import exit_code
from stoker.cli.rehearse.kills import VICTIMS
from stoker.kit.lock import read_holder
from support.downloads import ENVIRON, hub_pipeline, put_parquet
from support.external_trainer import make_external
from support.fake_nvml import FakeDriver
from support.fetch_fixtures import hub_fixture, served_hub_fixture  # noqa: F401 - found by their names
from support.loopback_hub import LoopbackHub
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.processes import wait_gone
from support.stoker_command import StokerCommand
from support.training import SLOW_ENOUGH, TrainPipeline, make_training, on_one_core, small_trainer
from support.waiting import LONG_S, wait_until

SETTINGS: dict[str, Any] = {
    "train__steps": 100_000,
    "train__seq_len": 64,
    "train__global_batch": 4,
    "train__model": SLOW_ENOUGH,
    "train__schedule": {"warmup_steps": 10},
    "train__start_when": {"tokens": "1000", "shard_sets": 1},
    "train__evaluate": {"every_steps": 1000, "tokens": 512},
    "supervise__stop_time": "20s",
    "supervise__backoff": {"first": "0.1s", "most": "0.2s"},
}


class Rehearsed(StokerCommand):
    """A rehearsal; what it prints is kept beside the pipeline's directory."""

    def __init__(self, data: DataPipeline, *options: str, with_torch: bool = False) -> None:
        self.home = data.home
        printed = data.home.with_name(f"{data.home.name}.printed")
        with on_one_core() if with_torch else small_trainer():
            super().__init__(printed, "rehearse", str(data.file), *options)

    def begun(self) -> Path:
        """The lock of a daemon that works in the scratch directory."""
        name = ".rehearsal-*/state/locks/download_watchdog.lock"
        return wait_until(lambda: [one for one in self.home.glob(name) if read_holder(one)], what="it")[0]

    def left(self) -> list[str]:
        """What lies in the pipeline's directory, hidden names too."""
        return sorted(path.name for path in self.home.iterdir())


@pytest.fixture
def rehearsed() -> Iterator[Any]:
    begun: list[Rehearsed] = []

    def begin(data: DataPipeline, *options: str, **how: bool) -> Rehearsed:
        begun.append(Rehearsed(data, *options, **how))
        return begun[-1]

    yield begin
    for one in begun:
        one.end()


def with_files(home: Path, **changes: Any) -> DataPipeline:
    data = make_pipeline(home, **{**SETTINGS, **changes})
    for number in range(2):
        write_fineweb(data.source / f"{number}.parquet", rows=60, seed=number)
    return data


def test_a_rehearsal_kills_its_own_tells_what_it_saw_and_leaves_nothing(
    tmp_path: Path, hub: LoopbackHub, rehearsed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pipeline with a hub and a warm disk."""
    for name, value in {**ENVIRON, "STOKER_TEST_STEP_S": "0.05"}.items():
        monkeypatch.setenv(name, value)
    put_parquet(hub, 3, 60)
    changes = {**SETTINGS, "warm": str(tmp_path / "p" / "warm"), "train__checkpoint": {"mirror": False}}
    data = hub_pipeline(tmp_path / "p", hub, **changes)
    one = rehearsed(data, "--minutes", "1")
    assert one.process.wait(100.0) == 0, one.said()
    report = one.said().partition("\nstage_shard")
    rows = {line[:19].rstrip(): line[19:] for line in f"{report[1]}{report[2]}".splitlines()[1:]}
    assert [*rows][:5] == [*VICTIMS]
    for what in ("stage_shard", "download_watchdog"):
        assert re.fullmatch(r"at work again \d+\.\d s after its kill", rows[what])
    for what in ("trainer", "guard", "train_supervisor"):
        form = r"first step [\d.]+ s after its kill, from step (\d+): \d+ made again"
        told = re.fullmatch(form, rows[what])
        assert told, rows
        assert int(told[1]) > 0
    assert rows["speed"] == "10,000 tokens/s, 0.0256 s a step"
    assert rows["save"].startswith("training waits 0.5 s, proven ")
    assert rows["whole run"].startswith("100,000 steps, 25.6 M tokens: done in about 43 min")
    assert " at the run's end, of " in rows["disk"]
    assert rows["best interval"].startswith("4 min 54 s ")
    assert one.left() == ["data.yaml", "source"]
    assert not one.everyone()


def test_an_external_trainer_a_gpu_in_use_and_what_cannot_begin_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = make_external(tmp_path / "own", "").data
    assert exit_code(["rehearse", str(own.file)]) == 78
    assert "train.command: names a trainer of your own" in capsys.readouterr().err

    driver = FakeDriver(tmp_path / "driver")
    driver.cards(1)
    for name, value in driver.environ.items():
        monkeypatch.setenv(name, value)
    data = with_files(tmp_path / "p")
    assert exit_code(["rehearse", str(data.file)]) == 75
    assert "the GPU is in use: pid 4000000 has 2.0 GiB on GPU 0 (Fake H100)" in capsys.readouterr().err

    driver.cards(0)
    with_files(tmp_path / "p", train__init_from=str(tmp_path / "step-000000010"))
    with patch.dict(os.environ):
        assert exit_code(["rehearse", str(data.file)]) == 78
    assert "is no checkpoint, and no model in the layout of transformers" in capsys.readouterr().err
    assert sorted(path.name for path in data.home.iterdir()) == ["data.yaml", "source"]


@pytest.mark.long
def test_one_sweeps_after_a_killed_one_whose_daemons_have_ended_and_a_stop_leaves_nothing(
    tmp_path: Path, rehearsed: Any
) -> None:
    data = with_files(tmp_path / "p")
    killed = rehearsed(data)
    lock = killed.begun()
    trace = lock.parents[2] / "of-the-killed-one"
    daemon = read_holder(lock)
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGSTOP)  # or it could have ended before the next line but two
    killed.process.kill()
    killed.process.wait(LONG_S)
    assert exit_code(["rehearse", str(data.file)]) == 75, "its daemon holds the lock"
    os.kill(daemon.pid, signal.SIGCONT)
    wait_gone(killed.everyone())
    trace.touch()

    one = rehearsed(data)
    one.begun()
    assert not trace.exists()
    assert exit_code(["rehearse", str(data.file)]) == 75, "one is running"
    one.process.send_signal(signal.SIGTERM)
    status = Path(f"/proc/{one.process.pid}/status")
    ignored = re.compile(r"^SigIgn:\t([0-9a-f]+)$", re.MULTILINE)
    wait_until(
        lambda: int(ignored.findall(status.read_text())[0], 16) >> signal.SIGINT - 1 & 1, what="its end"
    )
    one.process.send_signal(signal.SIGINT)  # a second one, which must not cut it short
    assert one.process.wait(LONG_S) == 128 + signal.SIGTERM
    assert not one.everyone()
    assert one.left() == ["data.yaml", "source"]


@pytest.mark.long
def test_beside_a_live_run_of_the_same_file_the_losses_of_that_are_bit_identical(
    shard_sets: Path, tmp_path: Path, rehearsed: Any
) -> None:
    source = {"dataset__source__path": str(shard_sets / "source"), "train__steps": 100_000}
    live, alone = (
        make_training(shard_sets, tmp_path / name, with_torch=True, **source) for name in ("live", "alone")
    )
    daemon = live.start()
    try:
        live.wait_for_step(3)
        one = rehearsed(live.data, "--minutes", "2", with_torch=True)
        assert one.process.wait(200.0) == 0, one.said()
    finally:
        daemon.stop()
    reached = live.last_step()
    daemon = alone.start()
    try:
        alone.wait_for_step(reached, 300.0)
    finally:
        daemon.stop()
    assert reached > 100
    assert losses(live, reached) == losses(alone, reached)
    assert [event for event in live.events() if event["level"] != "info"] == []
    assert len(live.events("trainer_launched")) == 1
    assert not [name for name in one.left() if name.startswith(".")]


def losses(training: TrainPipeline, upto: int) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in training.rows() if "loss" in row and row["step"] <= upto}
