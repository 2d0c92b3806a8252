"""What the supervisor changes before it launches a trainer again, with real trainers that fail."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.log import read_log
from stoker.store.record import read_record
from stoker.supervise.audit.audit import audit_run
from support.cgroups import cgroup_of, inside
from support.halting import halts_at
from support.processes import daemon_command, start_daemon
from support.training import TrainPipeline, make_training
from support.waiting import LONG_S, wait_until


def classes(run: TrainPipeline) -> list[str]:
    return [event["exit_class"] for event in run.events("trainer_exited")]


def forks(run: TrainPipeline) -> list[dict[str, Any]]:
    return read_log(run.run.timelines).entries


@pytest.mark.parametrize("flips", [2, pytest.param(20, marks=pytest.mark.long)])
def test_failed_allocations_halve_the_micro_batch_and_a_step_that_is_not_finite_by_chance_is_made_again(
    finished: TrainPipeline, shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flips: int
) -> None:
    steps = random.Random(16).sample(range(2, 61), flips)
    once = tmp_path / "once"
    once.mkdir()
    for step in steps:
        (once / str(step)).touch()
    monkeypatch.setenv("STOKER_TEST_NAN_ONCE", str(once))
    monkeypatch.setenv("STOKER_TEST_WINDOW_BYTES", str(60 << 20))
    monkeypatch.setenv("STOKER_TEST_ADDRESS_BYTES", str(180 << 20))  # for two windows, not for four
    # Several may come before the next checkpoint.
    run = make_training(shard_sets, tmp_path / "flipped", supervise__no_progress_launches=20)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert classes(run) == ["host_memory", *["non_finite"] * flips, "finished"] and not list(once.iterdir())
    assert [(one["before"], one["micro_batch"]) for one in run.events("micro_batch_lowered")] == [(4, 2)]
    assert not forks(run) and not run.events("windows_skipped")
    rows = [row | {"micro_batch": 4} if "micro_batch" in row else row for row in run.rows()]
    assert rows == finished.rows() and run.tensors() == finished.tensors()


def test_windows_of_a_step_that_is_twice_not_finite_are_skipped_and_too_many_take_the_run_back_and_halt_it(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"every": None, "every_steps": 10, "keep_last": 9}
    limits = {"train__checkpoint": kept, "supervise__skips_in_1000_steps": 1}
    run = make_training(shard_sets, tmp_path, train__steps=30, **limits)
    monkeypatch.setenv("STOKER_TEST_NAN", "66 90")  # of windows 64 to 67, which step 17 reads, and of step 24
    ended = run.once()
    assert ended.returncode == 70, ended.stderr
    assert classes(run) == ["non_finite"] * 4
    first, back = forks(run)
    assert (first["from"], first["skip"]) == (16, [[[0, 64], [0, 68]]])
    assert run.events("windows_skipped")[0]["windows"] == 4
    assert (back["from"], back["skip"]) == (10, [])
    assert run.checkpoints()[-1] == "step-000000010"
    record = run.record()
    assert (record["state"], record["halted"]["class"], record["fork"]) == ("halted", "non_finite", None)


def test_a_spike_takes_the_run_back_before_it_and_its_windows_are_skipped(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"supervise__on_spike": "rollback", "train__steps": 140}
    kept = {"every": None, "every_steps": 40, "keep_last": 99}
    monkeypatch.setenv("STOKER_TEST_STEP_S", "0.002")
    run = make_training(shard_sets, tmp_path, train__checkpoint=kept, **changes)
    monkeypatch.setenv("STOKER_TEST_SPIKE", "399 401 405")  # steps 100 to 102
    # There it halts until the supervisor asks it to stop, or it might be done before.
    for name, value in halts_at(tmp_path / "halts", [102]).items():
        monkeypatch.setenv(name, value)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    (spike,) = run.events("loss_spike")
    assert (spike["first"], spike["step"], spike["windows"]) == (100, 102, [[0, 396], [0, 408]])
    assert spike["loss"] > spike["median"] + 2.5
    (fork,) = forks(run)
    assert (fork["from"], fork["skip"]) == (80, [[[0, 396], [0, 408]]])
    assert classes(run) == ["stopped_as_asked", "finished"]
    assert run.events("windows_skipped")[0]["windows"] == 12
    assert run.events("checkpoints_abandoned")[0]["names"] == ["step-000000102"]
    (over,) = run.events("loss_recovered")
    assert (over["of"], over["first"]) == ("spike", 100)
    assert (run.record()["watched"], run.record()["fork"]) == ({}, None)
    assert not run.events("loss_diverged") and not run.events("loss_plateau")
    audit = audit_run(run.data.pipeline)
    assert audit.findings == () and (audit.plan.applied, audit.plan.skipped) == (560, 12)


def test_a_checkpoint_that_cannot_be_loaded_twice_is_set_aside_and_where_none_can_be_all_are_kept(
    finished: TrainPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_training(finished.data.home, tmp_path, train__steps=70)
    before = run.checkpoints()
    monkeypatch.setenv("STOKER_TEST_UNLOADABLE", " ".join(before))
    ended = run.once()
    assert ended.returncode == 70, ended.stderr
    assert [event["resume_step"] for event in run.events("trainer_launched")] == [0, 60, 60, 50, 50]
    (suspect,) = run.events("checkpoint_suspect")
    assert Path(suspect["moved_to"]).name not in before
    assert run.checkpoints() == before and run.record()["suspects"] == []
    assert "they are not the cause" in run.record()["halted"]["reason"]


@pytest.mark.long
def test_a_trainer_whose_allocation_fails_at_a_micro_batch_of_one_window_is_halted(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_training(shard_sets, tmp_path, train__steps=20)
    monkeypatch.setenv("STOKER_TEST_WINDOW_BYTES", str(60 << 20))
    monkeypatch.setenv("STOKER_TEST_ADDRESS_BYTES", str(40 << 20))
    ended = run.once()
    assert ended.returncode == 70, ended.stderr
    assert classes(run) == ["host_memory"] * 3
    lowered = [(event["before"], event["micro_batch"]) for event in run.events("micro_batch_lowered")]
    assert lowered == [(4, 2), (2, 1)]
    assert "a micro-batch of one window" in run.record()["halted"]["reason"]


@pytest.mark.root
def test_a_trainer_that_the_kernel_ends_for_memory_gets_half_the_micro_batch(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_training(shard_sets, tmp_path, train__steps=10)
    monkeypatch.setenv("STOKER_TEST_WINDOW_BYTES", str(150 << 20))  # 4 windows do not fit, 2 do
    with cgroup_of(500 << 20) as group, run.trainer():
        daemon = start_daemon(
            [*inside(group), *daemon_command(TRAIN_SUPERVISOR, run.data.file)], tmp_path / "err"
        )
        try:
            wait_until(lambda: run.record().get("state") == "finished", LONG_S, "the end of the run")
        finally:
            assert daemon.stop() == 0
    assert classes(run) == ["host_memory", "finished"]
    ended = run.events("trainer_exited")[0]
    assert ended["oom_kills"] > 0 and ended["peak_bytes"] > 200 << 20
    (lowered,) = run.events("micro_batch_lowered")
    assert (lowered["before"], lowered["micro_batch"]) == (4, 2)
    assert (run.record()["micro_batch"], read_record(run.run.launch)["micro_batch"]) == (2, 2)
    assert [row["step"] for row in run.rows() if "loss" in row] == list(range(1, 11))
