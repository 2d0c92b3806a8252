"""A resumed run is the same run: the real trainer, killed with -9 between checkpoints, ends bit-identical."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.halting import halts_at, is_halted
from support.trainer_run import TrainerRun
from support.waiting import LONG_S, wait_until

CADENCE = {"every_s": None, "every_steps": 7}
KILL_AFTER = (9, 18, 24, 37, 50)


@pytest.mark.long  # test_train_supervisor_kills proves it of a run below its supervisor
def test_a_run_killed_five_times_between_checkpoints_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    peaceful = _run(tmp_path / "peaceful")
    assert peaceful.start(checkpoint=CADENCE).wait(LONG_S) == 0, peaceful.errors.read_text()

    killed = _run(tmp_path / "killed")
    resume: Path | None = None
    halting = halts_at(tmp_path / "halts", KILL_AFTER)
    for step in KILL_AFTER:
        trainer = killed.start(checkpoint=CADENCE, resume=resume, environ=halting)
        _kill_between_checkpoints(killed, trainer, step)
        resume = killed.checkpoints()[-1]
        assert _step(resume) < step, "steps have to be done again after the kill"
    assert killed.start(checkpoint=CADENCE, resume=resume).wait(LONG_S) == 0, killed.errors.read_text()

    assert killed.rows() == peaceful.rows()
    assert [path.name for path in killed.checkpoints()] == [path.name for path in peaceful.checkpoints()]
    for ours, theirs in zip(killed.checkpoints(), peaceful.checkpoints(), strict=True):
        for file in sorted(theirs.iterdir()):
            assert (ours / file.name).read_bytes() == file.read_bytes(), file


def _run(root: Path) -> TrainerRun:
    root.mkdir()
    run = TrainerRun(root, steps=60, overrides={"threads": 2})
    run.plan(200, 300)
    return run


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _kill_between_checkpoints(run: TrainerRun, trainer: subprocess.Popen[bytes], step: int) -> None:
    """Kill it where it halted, with steps done since its newest checkpoint."""

    def halted() -> bool:
        assert trainer.poll() is None, run.errors.read_text()
        return is_halted(trainer.pid)

    wait_until(halted, what=f"step {step}")
    trainer.kill()
    trainer.wait(LONG_S)
    assert run.last_step() == step
