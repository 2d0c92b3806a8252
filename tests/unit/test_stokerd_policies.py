"""What the policy's decisions make of the run's record and checkpoints, whatever dies in between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.plan.timelines import read_timelines
from stoker.supervise.policy import Fork, Response, Tried
from stokerd.supervision import policies
from support.run_ground import NAME, Ground

SKIP = Fork(30, ((34, 35),), "non_finite: step 35 was not finite, twice")


def test_what_was_tried_is_read_back_by_the_next_supervisor(tmp_path: Path) -> None:
    tried = Tried(waited=True, again=(0, 35), unloaded=NAME, suspects=1)
    Ground(tmp_path).answer(Response(tried))
    facts = policies.facts(Ground(tmp_path).run)
    assert (facts.timeline, facts.tried, facts.steps) == (0, tried, (30, 20, 10))


def test_windows_are_skipped_once_whatever_died_in_between(tmp_path: Path) -> None:
    Ground(tmp_path).answer(Response(fork=SKIP))
    ground = Ground(tmp_path)  # another supervisor: the first died before it made the rollback
    decided = ground.record.fork
    assert ground.roll_back() and ground.words == ["windows_skipped"]
    (fork,) = read_timelines(ground.files.timelines).forks
    assert (fork.from_step, fork.reason, len(fork.skip)) == (30, SKIP.reason, 1)
    assert ground.record.fork is None and ground.requests.rollbacks.of_policy() is None
    ground.run.store.change(fork=decided)  # it died before it could write that
    assert ground.roll_back() and ground.record.fork is None
    assert len(read_timelines(ground.files.timelines).forks) == 1
    assert policies.facts(ground.run).skipped == (30,)


def test_a_rollback_that_came_too_late_is_dropped(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.answer(Response(fork=SKIP))
    assert ground.record.fork is not None
    ground.run.store.change(fork={**ground.record.fork, "timeline": 4})
    assert not ground.roll_back() and ground.words == ["rollback_refused"]
    assert ground.record.fork is None and not read_timelines(ground.files.timelines).forks


def test_a_run_that_goes_back_and_halts_stays_halted(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.run.change(proofs={"step-000000020": "proven"})
    ground.answer(Response(fork=Fork(20, (), "too_often_non_finite"), halt="too often"), "non_finite")
    assert ground.words == ["run_halted"]
    assert ground.roll_back() and ground.here() == [10, 20]
    record = ground.record
    assert record.halted is not None and (record.state, record.halted["class"]) == ("halted", "non_finite")
    assert not Ground(tmp_path).run.store.is_file_changed
    assert not Ground(tmp_path, supervise__stop_time="5m").run.store.is_file_changed, "the default"
    assert Ground(tmp_path, train__seed=1, plan__epochs=7).run.store.is_file_changed


def test_a_suspect_is_set_aside_by_the_next_supervisor_and_put_back_where_it_was_not_the_cause(
    tmp_path: Path,
) -> None:
    Ground(tmp_path).answer(Response(suspect=NAME))
    ground = Ground(tmp_path)
    asked = ground.record.suspect
    policies.set_aside(ground.run)
    ground.run.store.change(suspect=asked)  # it died before it could write that
    policies.set_aside(ground.run)
    copies = [Mirrored(0, 30, "ab" * 4), Mirrored(0, 30, "cd" * 4)]
    assert policies.newest_usable(ground.run, copies) == copies[1], "its copy is not fetched again"
    assert (ground.here(), ground.words) == ([10, 20], ["checkpoint_suspect"])
    assert (ground.record.suspect, ground.record.suspects) == (None, [f"{NAME}-{'ab' * 4}"])
    ground.answer(Response(halt="none can be loaded", puts_back=True))
    assert (ground.here(), ground.record.suspects) == ([10, 20, 30], [])
    assert not list(ground.pipeline.layout.quarantine.glob("checkpoint-*"))


def test_a_smaller_micro_batch_holds_until_the_files_is_another(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.answer(Response(micro_batch=2))
    assert ground.words == ["micro_batch_lowered"]
    record = ground.record
    assert (record.asked_micro_batch("auto"), record.asked_micro_batch(8)) == (2, 8)
    of_8 = replace(record, micro_batch_of=8)
    assert (of_8.asked_micro_batch("auto"), of_8.asked_micro_batch(8)) == (None, 2)


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_changed_file_ends_a_halt_and_no_pause(tmp_path: Path, is_paused: bool) -> None:
    ground = Ground(tmp_path)
    policies.halt(ground.run, "why")
    if is_paused:
        ground.run.store.pause("uid 0")
    ground = Ground(tmp_path, plan__epochs=7)
    ground.requests.refresh()
    assert (ground.record.halted, bool(ground.record.held)) == (None, is_paused)
    assert ground.words == ["run_resumed"] and ground.record.state == ("paused" if is_paused else "waiting")


def test_a_paused_run_stays_paused_over_a_rollback_until_it_is_resumed(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.run.store.pause("uid 0")
    policies.halt(ground.run, "why")
    assert ground.record.state == "halted"
    ground.run.store.rolled_back(20)
    assert (ground.record.state, bool(ground.record.held)) == ("paused", True)
    ground.run.store.resume()
    assert (ground.record.state, ground.record.held) == ("waiting", "")
