"""kill -9 of trainer, guard and supervisor: the same run, no orphans, never two trainers."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.kit.process import ProcessId, signal_process
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.supervise.run.launch_ends import read_ends
from support.halting import halts_at, is_halted
from support.processes import ENDING_S, wait_gone
from support.training import TrainPipeline, make_training, never_two
from support.waiting import wait_until

SAVED_EVERY = 10


@pytest.mark.parametrize(
    ("peaceful", "kills"),  # with torch also: test_sealer_kills, whose replay is the peaceful run
    [("finished", 2), pytest.param("finished_with_torch", 5, marks=pytest.mark.long)],
)
def test_a_trainer_killed_again_and_again_ends_with_the_same_losses_and_bytes_and_so_does_its_replay(
    shard_sets: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    *,
    peaceful: str,
    kills: int,
) -> None:
    whole: TrainPipeline = request.getfixturevalue(peaceful)
    steps = [SAVED_EVERY * kill + 4 for kill in range(kills)]
    for name, value in halts_at(tmp_path / "halts", ["eval", *steps]).items():
        monkeypatch.setenv(name, value)
    run = make_training(shard_sets, tmp_path / "killed", with_torch=whole.with_torch)
    daemon = run.start()
    try:
        with never_two(run.trainers):
            evaluating = wait_until(lambda: halted_trainer(run), what="the first evaluation")
            told = "evaluating the held-out loss: step 0 of 60"
            wait_until(lambda: run.data.status(TRAIN_SUPERVISOR)["text"].startswith(told), what="the status")
            signal_process(evaluating, signal.SIGCONT)
            for step in steps:
                kill_where_it_halted(run, step)
            wait_until(lambda: run.record().get("state") == "finished", what="the end of the run")
    finally:
        assert daemon.stop() == 0
    assert [event["exit_class"] for event in run.events("trainer_exited")] == ["killed"] * kills + [
        "finished"
    ]
    assert [event["resume_step"] for event in run.events("trainer_launched")] == [0, 0, 10, 20, 30, 40][
        : kills + 1
    ]
    ends, _ = read_ends(run.run.runs)
    assert [one.exit_class for one in ends] == ["killed"] * kills + ["finished"]
    assert all(one.seconds["redone"] > 0 for one in ends[:-1])
    assert run.rows() == whole.rows()
    assert run.tensors() == whole.tensors()
    with run.trainer():
        assert exit_code(["replay", str(run.data.file), "main", str(tmp_path / "replay")]) == 0


def halted_trainer(run: TrainPipeline) -> ProcessId | None:
    """The trainer that stands still."""
    return next((each for each in run.trainers() if is_halted(each.pid)), None)


def kill_where_it_halted(run: TrainPipeline, step: int) -> None:
    """kill -9 the trainer that has halted at this step."""
    trainer = wait_until(lambda: halted_trainer(run), what=f"step {step}")
    assert run.last_step() == step
    signal_process(trainer, signal.SIGKILL)
    wait_gone([trainer])


def test_when_guard_and_supervisor_are_killed_in_turn_the_trainer_saves_and_the_run_goes_on(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TEST_PRINTS", "100")  # also when nobody reads it any more
    run = make_training(shard_sets, tmp_path / "in-turn", train__steps=5000)
    first = run.start()
    second = None
    try:
        with never_two(run.trainers):
            run.wait_for_step(5)
            before = run.processes()
            for guard in run.guards():
                signal_process(guard, signal.SIGKILL)
            wait_gone(before)
            wait_until(lambda: run.events("trainer_launched")[1:], what="a launch after the guard's end")
            assert run.events("trainer_exited")[0]["exit_class"] == "guard_lost"
            assert run.events("trainer_launched")[1]["resume_step"] >= 5

            run.wait_for_step(run.last_step() + 3)
            before, reached = run.processes(), run.last_step()
            first.kill()
            second = run.start()  # at once: it has to wait for the trainer of the first
            wait_gone(before)
            wait_until(lambda: run.events("trainer_launched")[2:], what="a launch by the next supervisor")
            assert run.events("trainer_launched")[2]["resume_step"] >= reached, "what the first one saved"
            guard_lost, lost = read_ends(run.run.runs)[0]
            assert (guard_lost.exit_class, lost.exit_class) == ("guard_lost", None)
            assert lost.seconds["down"] > 0 and lost.last_step >= reached
    finally:
        for daemon in (first, second):
            if daemon is not None and daemon.process.poll() is None:
                assert daemon.stop() == 0
    wait_gone(run.processes(), ENDING_S)


def test_a_long_evaluation_goes_on_and_who_stands_still_or_only_talks_is_stopped_with_its_stacks_taken(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TEST_EVALUATION_PARTS", "55")  # longer than the limit
    monkeypatch.setenv("STOKER_TEST_TALKS_AT", "12")
    monkeypatch.setenv("STOKER_TEST_TALKED", str(tmp_path / "talked"))
    for name, value in halts_at(tmp_path / "halts", [5]).items():
        monkeypatch.setenv(name, value)
    # The limit holds for loading too: a machine on which that takes longer tries again.
    limits = {"supervise__hang_limit": "4s", "supervise__stop_time": "1s"}
    run = make_training(
        shard_sets, tmp_path / "hung", train__steps=5000, supervise__no_progress_launches=100, **limits
    )

    def hung(phase: str) -> list[dict[str, Any]]:
        return [event for event in run.events("trainer_hung") if event["phase"] == phase]

    def taken(launch: str) -> list[dict[str, Any]]:
        return [event for event in run.events("stacks_taken") if event["launch"] == launch]

    daemon = run.start()
    try:
        trainer = wait_until(lambda: halted_trainer(run), what="step 5")
        still = run.events("trainer_launched")[-1]["launch"]
        (found,) = wait_until(lambda: hung("train"), what="the finding of who stands still")
        assert found["processes"]
        # It is stopped: it cannot answer.
        assert (taken(still)[-1]["ranks"], taken(still)[-1]["at"]) == (0, "the kernel's view alone")
        assert f"{trainer.pid} python" in Path(taken(still)[-1]["file"]).read_text()
        wait_gone([trainer])
        (found,) = wait_until(lambda: hung("wait-data"), what="the finding of who only talks")
        assert found["step"] == 12, "the plan has a batch"
        wait_until(lambda: run.last_step() > 12, what="training in the next launch")
    finally:
        assert daemon.stop() == 0
    ends = {event["launch"]: event["exit_class"] for event in run.events("trainer_exited")}
    talks = found["launch"]
    assert ends[still] == ends[talks] == "hung" and not hung("eval")
    first, second = taken(talks)
    assert first["step"] == second["step"] == 12
    assert first["ranks"] == second["ranks"] == 1
    report = Path(first["file"]).read_text()
    assert report.count("== 2") == 2 and report.count("in _talk_for_ever") == 2
    assert report.count("-- processes") == 2
