"""Trainers, guards, sealers, workers and supervisors that stand still: each goes on, or is answered."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from stoker.kit.process import ProcessId, children_tree, signal_process
from support.halting import is_halted
from support.hanging import Hanging
from support.processes import wait_gone
from support.training import TrainPipeline, make_training, runs
from support.waiting import wait_until

PROOF = ("-m", "stoker.checkpoints.proof_worker")
PHASES = ("load", "compile", "train", "eval", "checkpoint", "wait-data")


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hanging:
    made = Hanging(tmp_path / "hanging")
    monkeypatch.setenv("PYTHONPATH", str(made.directory))
    return made


@pytest.mark.timeout(900)
@pytest.mark.parametrize("phases", [["eval"], pytest.param([*PHASES], marks=pytest.mark.long)])
def test_a_trainer_that_holds_the_gil_for_ever_is_stopped_at_its_limit_with_its_stacks_taken(
    finished: TrainPipeline, shard_sets: Path, tmp_path: Path, hanging: Hanging, phases: list[str]
) -> None:
    limits = {
        "supervise__hang_limit": "4s",
        "supervise__stop_time": "1s",
        "supervise__limits": {"compile": "4s"},
    }
    run = make_training(shard_sets, tmp_path / "hung", supervise__no_progress_launches=100, **limits)
    daemon = run.start()
    try:
        for number, phase in enumerate(phases):
            hanging.ask(f"hang-{phase}")
            if number:
                for trainer in run.trainers():  # the next launch comes through every phase again
                    signal_process(trainer, signal.SIGKILL)
            wait_until(lambda: len(run.events("trainer_hung")) > number, what=f"a hang in {phase}")  # noqa: B023
        wait_until(lambda: run.record().get("state") == "finished", what="the end of the run")
    finally:
        assert daemon.stop() == 0
    assert [one["phase"] for one in run.events("trainer_hung")] == phases
    hung = {one["launch"] for one in run.events("trainer_exited") if one["exit_class"] == "hung"}
    assert len(hung) == len(phases)
    for launch in hung:
        suspected, stopped = (one for one in run.events("stacks_taken") if one["launch"] == launch)
        assert "is_as_before" not in suspected and stopped["is_as_before"] is True
        assert "in hold_the_gil" in stopped["at"] and suspected["ranks"] == stopped["ranks"] == 1
    report = Path(run.events("stacks_taken")[-1]["file"]).read_text()  # those of older launches are removed
    assert report.count("in hold_the_gil") == 2
    assert run.rows() == finished.rows() and run.tensors() == finished.tensors()


def test_a_guard_a_supervisor_and_a_worker_that_stand_still_cost_the_trainer_nothing(
    shard_sets: Path, tmp_path: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TEST_STEP_S", "0.1")  # the plan must last while nobody extends it
    hanging.ask("stop-proof")
    limits = {"supervise__hang_limit": "6s", "supervise__limits": {"load": "60s"}}
    run = make_training(
        shard_sets, tmp_path / "stopped", train__steps=20_000, train__global_batch=1, **limits
    )
    daemon = run.start()
    try:
        worker = wait_until(lambda: halted_worker(daemon.pid), what="a proof worker that stands still")
        (trainer,) = run.trainers()
        (guard,) = run.guards()
        for process in (guard, ProcessId.of(daemon.pid)):
            signal_process(process, signal.SIGSTOP)
            try:
                run.wait_for_step(run.last_step() + 70)  # which takes longer than a trainer's limit
            finally:
                signal_process(process, signal.SIGCONT)
        wait_gone([worker])
        wait_until(lambda: run.events("checkpoint_unreadable"), what="its end told")
        wait_until(lambda: run.events("checkpoint_proven"), what="the proof by another one")
        assert run.trainers() == [trainer]
        assert not run.events("trainer_hung") and not run.events("checkpoint_quarantined")
    finally:
        assert daemon.stop() == 0


def halted_worker(pid: int) -> ProcessId | None:
    return next((one for one in children_tree(pid) if runs(one, PROOF) and is_halted(one.pid)), None)


@pytest.mark.long
def test_a_sealer_that_stands_still_ends_its_launch_at_the_limit_and_loses_nothing(
    finished: TrainPipeline, shard_sets: Path, tmp_path: Path
) -> None:
    run = make_training(shard_sets, tmp_path / "stopped", supervise__hang_limit="4s")
    daemon = run.start()
    try:
        run.wait_for_step(3)
        (sealer,) = wait_until(run.sealers, what="the sealer")
        signal_process(sealer, signal.SIGSTOP)
        (hung,) = wait_until(lambda: run.events("trainer_hung"), what="the finding")
        assert hung["phase"] == "checkpoint"
        wait_gone([sealer])
        wait_until(lambda: run.record().get("state") == "finished", what="the end of the run")
    finally:
        assert daemon.stop() == 0
    assert [one["resume_step"] for one in run.events("trainer_launched")][1] >= 10
    assert run.rows() == finished.rows() and run.tensors() == finished.tensors()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_pause_in_another_phase_beyond_the_limit_of_training_is_taken_for_a_hang(
    shard_sets: Path, tmp_path: Path, hanging: Hanging
) -> None:
    chance = random.Random(16)
    # Training has 6 s: half of its limit, and idle, are suspect; a pause takes up to twice as long.
    run = make_training(
        shard_sets, tmp_path / "paused", train__steps=100_000, supervise__limits={"idle": "6s"}
    )
    daemon = run.start()
    try:
        trainer = run.wait_for_step(3)
        pauses = [f"pause-{phase}" for phase in ("compile", "eval", "checkpoint")]
        for _ in range(10):
            for pause in pauses:
                hanging.ask(pause, text=chance.uniform(6.5, 12))
            signal_process(trainer, signal.SIGTERM)
            wait_until(lambda: not hanging.is_asked(pauses), 120, "a pause in each phase")
            trainer = run.wait_for_step(run.last_step() + 25)
        assert {one["exit_class"] for one in run.events("trainer_exited")} <= {"finished_short"}
        assert not run.events("trainer_suspect") and not run.events("trainer_hung")
    finally:
        assert daemon.stop() == 0
