"""What a machine does to a train supervisor: it waits, says so, and goes on by itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from support.hanging import Hanging
from support.mounts import WHY_NOT, apart
from support.training import TrainPipeline, make_training
from support.waiting import LONG_S, wait_until


def test_a_trainer_that_cannot_be_started_is_started_later_and_counts_as_no_launch(
    shard_sets: Path, tmp_path: Path
) -> None:
    run = make_training(
        shard_sets, tmp_path / "unstarted", train__steps=10, supervise__no_progress_launches=1
    )
    pipeline = run.data.pipeline
    in_the_way = pipeline.runtime.notify_socket("main") / "x"
    in_the_way.mkdir(parents=True)
    daemon = run.start()
    try:
        wait_until(lambda: run.events("worker_not_started"), what="the finding")
        assert (run.record()["state"], run.record()["fruitless"]) == ("running", 0)
        wait_until(lambda: "cannot be started" in run.data.status("train_supervisor")["doing"], what="words")
        in_the_way.rmdir()
        in_the_way.parent.rmdir()
        wait_until(lambda: run.record()["state"] == "finished", what="the end of the run")
    finally:
        assert daemon.stop() == 0
    assert exit_code(["runs", str(run.data.file)]) == 0


@pytest.mark.long
def test_a_validator_that_cannot_run_convicts_nothing(
    finished: TrainPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(tmp_path / "broken")
    monkeypatch.setenv("PYTHONPATH", str(hanging.directory))
    hanging.ask("break-proof")
    run = make_training(finished.data.home, tmp_path / "run", train__steps=70)
    before = run.checkpoints()
    daemon = run.start()
    try:
        wait_until(lambda: run.events("checkpoint_unreadable")[1:], what="two tries")
        assert run.checkpoints() == before and not list(run.data.pipeline.layout.quarantine.iterdir())
        assert len(run.events("trainer_launched")) == 1
        hanging.take_back("break-proof")
        wait_until(lambda: run.record()["finished"] and run.last_step() == 70, what="the end of the run")
    finally:
        assert daemon.stop() == 0
    assert run.events("trainer_launched")[1]["resume_step"] == 60


IN_MOUNTS = """
import sys
from pathlib import Path
from integration.test_supervisor_faults import disk_fails
disk_fails(*map(Path, sys.argv[1:3]), *sys.argv[3:])
"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("disk", "fault"),
    [
        ("checkpoints", "full"),
        pytest.param("checkpoints", "read-only", marks=pytest.mark.long),
        pytest.param("runs", "full", marks=pytest.mark.long),
    ],
)
def test_a_run_whose_disk_cannot_be_written_goes_on_once_it_can(
    shard_sets: Path, tmp_path: Path, disk: str, fault: str
) -> None:
    command = apart([sys.executable, "-c", IN_MOUNTS, str(shard_sets), str(tmp_path), disk, fault])
    if command is None:
        pytest.skip(WHY_NOT)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def disk_fails(shard_sets: Path, home: Path, disk: str, fault: str) -> None:
    """In mounts of its own: the disk of the checkpoints, or of the run, takes no bytes in its middle."""
    from support.mounts import mount_small, remount

    run = make_training(shard_sets, home / "run", train__steps=60, supervise__no_progress_launches=1)
    place = run.run.checkpoints if disk == "checkpoints" else run.data.pipeline.layout.runs
    mount_small(place, 8 << 20)
    daemon = run.start()
    try:
        run.wait_for_step(25)
        if fault == "full":
            with (place / "filler").open("wb", buffering=0) as stream, contextlib.suppress(OSError):
                while True:
                    stream.write(bytes(1024))
        else:
            remount(place, "ro")
        ended = wait_until(lambda: run.events("trainer_exited"), LONG_S, "the end of the trainer")
        if disk == "checkpoints":
            wait_until(lambda: run.events("trainer_exited")[1:], LONG_S, "the end of another one")
        else:  # of which no launch can be recorded
            wait_until(lambda: run.events("storage_trouble"), LONG_S, "the trouble told")
        assert ended[0]["exit_class"] == "storage"
        assert not run.events("run_halted") and not list(run.data.pipeline.layout.quarantine.iterdir())
        remount(place, "rw")
        (place / "filler").unlink(missing_ok=True)
        wait_until(lambda: run.record()["state"] == "finished", LONG_S, "the end of the run")
    finally:
        assert daemon.stop() == 0
    assert [row["step"] for row in run.rows() if "loss" in row] == list(range(1, 61))
    assert not list(run.data.pipeline.layout.quarantine.iterdir())
