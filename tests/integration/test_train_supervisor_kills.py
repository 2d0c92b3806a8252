"""kill -9 of trainer, guard and supervisor: the same run, no orphans, never two trainers."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from stoker.kit.process import signal_process
from support.processes import wait_gone
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

SAVED_EVERY = 10


@contextlib.contextmanager
def never_two(run: TrainPipeline) -> Iterator[None]:
    """Look all the time, and fail when there ever were two trainers of the run."""
    done, most = threading.Event(), [0]

    def look() -> None:
        while not done.wait(0.05):
            most[0] = max(most[0], len(run.trainers()))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    assert most[0] <= 1, f"{most[0]} trainers at once"


def test_a_trainer_killed_five_times_ends_with_the_same_losses_and_the_same_bytes(
    finished: TrainPipeline,
    shard_sets: Path,
    tmp_path: Path,
) -> None:
    run = make_training(shard_sets, tmp_path / "killed")
    daemon = run.start()
    sealed = []
    try:
        with never_two(run):
            for kill in range(5):
                sealed.append(kill_strictly_between(run, SAVED_EVERY * kill + 4))
            wait_until(lambda: run.record().get("state") == "finished", 90, "the end of the run")
    finally:
        assert daemon.stop() == 0
    assert [event["exit_class"] for event in run.events("trainer_exited")] == ["killed"] * 5 + ["finished"]
    assert [event["resume_step"] for event in run.events("trainer_launched")] == [0, *sealed]
    assert max(sealed) > 0
    assert run.rows() == finished.rows()
    assert run.tensors() == finished.tensors()


def kill_strictly_between(run: TrainPipeline, step: int) -> int:
    """kill -9 the trainer at that step or later, past its last checkpoint; returns that one's step."""
    while True:
        trainer = run.wait_for_step(step)
        signal_process(trainer, signal.SIGSTOP)  # what was done by now stands still while we look
        done = run.last_step()
        sealed = max((int(name.removeprefix("step-")) for name in run.checkpoints()), default=0)
        if done > sealed >= done - done % SAVED_EVERY:
            signal_process(trainer, signal.SIGKILL)
            wait_gone([trainer])
            return sealed
        signal_process(trainer, signal.SIGCONT)
        step = done + 1


def test_when_guard_and_supervisor_are_killed_in_turn_the_trainer_saves_and_the_run_goes_on(
    shard_sets: Path, tmp_path: Path
) -> None:
    run = make_training(shard_sets, tmp_path / "in-turn", train__steps=5000)
    first = run.start()
    second = None
    try:
        with never_two(run):
            run.wait_for_step(5)
            before = run.processes()
            for guard in run.guards():
                signal_process(guard, signal.SIGKILL)
            wait_gone(before, 15.0)
            wait_until(lambda: run.events("trainer_launched")[1:], 15.0, "a launch after the guard's end")
            assert run.events("trainer_exited")[0]["exit_class"] == "guard_lost"
            assert run.events("trainer_launched")[1]["resume_step"] >= 5

            run.wait_for_step(run.last_step() + 3)
            before = run.processes()
            first.kill()
            second = run.start()  # at once: it has to wait for the trainer of the first
            wait_gone(before, 15.0)
            saved = run.checkpoints()[-1]
            wait_until(lambda: run.events("trainer_launched")[2:], 15.0, "a launch by the next supervisor")
            assert run.events("trainer_launched")[2]["resume_step"] == int(saved.removeprefix("step-"))
    finally:
        for daemon in (first, second):
            if daemon is not None and daemon.process.poll() is None:
                assert daemon.stop() == 0
    assert run.processes() == []


def test_a_trainer_that_stands_still_is_stopped_and_launched_again(
    shard_sets: Path,
    tmp_path: Path,
) -> None:
    run = make_training(shard_sets, tmp_path / "hung", train__steps=5000, supervise__hang_limit="8s")
    daemon = run.start()
    try:
        trainer = run.wait_for_step(5)
        signal_process(trainer, signal.SIGSTOP)
        wait_until(lambda: run.events("trainer_hung"), 30.0, "the finding")
        wait_gone([trainer], 15.0)
        wait_until(lambda: run.events("trainer_launched")[1:], 15.0, "the next launch")
        assert run.events("trainer_exited")[0]["exit_class"] == "hung"
        assert run.events("trainer_hung")[0]["processes"]
    finally:
        assert daemon.stop() == 0
