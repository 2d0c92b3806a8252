"""What the supervisor knows of the mirror, when a launch must ask it, and what retention leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.retention import RetentionPolicy, reading
from stoker.supervise.actions import Job
from stoker.supervise.decide import mirror_job
from stoker.supervise.mirror.inventory import COMPLAINT_S, LOOK_AGAIN_S, Checkpoints, MirrorState
from support.checkpoint_data import seal
from support.pipelines import make_pipeline

FROM_THE_START = [(0, None)]
ROLLED_BACK = [(1, None), (0, 20)]


def one(step: int, timeline: int = 0) -> Mirrored:
    return Mirrored(timeline, step, f"{step:08x}", run_id="r")


def book(home: Path) -> MirrorState:
    return MirrorState(home / "mirror.json", home / "quarantine")


def test_a_run_that_would_begin_from_nothing_waits_until_the_mirror_was_seen_once(tmp_path: Path) -> None:
    assert book(tmp_path).to_look(None, FROM_THE_START, has_rejected=False) == "wait"
    first = book(tmp_path)
    first.listed([], 0.0)
    assert first.to_look(None, FROM_THE_START, has_rejected=False) == "no"
    assert book(tmp_path).to_look(None, FROM_THE_START, has_rejected=False) == "try"


def test_a_newer_copy_is_waited_for_and_only_one_of_this_history(tmp_path: Path) -> None:
    there = book(tmp_path)
    there.listed([one(10), one(30)], 0.0)
    for known in (there, book(tmp_path)):
        assert known.to_look(20, FROM_THE_START, has_rejected=False) == "wait"
        assert known.to_look(None, FROM_THE_START, has_rejected=False) == "wait"
    assert there.to_look(30, FROM_THE_START, has_rejected=False) == "no"
    assert there.to_look(20, ROLLED_BACK, has_rejected=False) == "no"


def test_after_a_conviction_a_look_is_worth_a_moment(tmp_path: Path) -> None:
    there = book(tmp_path)
    there.listed([one(10)], 0.0)
    assert there.to_look(20, FROM_THE_START, has_rejected=True) == "try"
    assert there.to_look(20, FROM_THE_START, has_rejected=False) == "no"


def test_what_was_copied_and_what_went_is_known_after_a_restart(tmp_path: Path) -> None:
    there = book(tmp_path)
    there.listed([one(10), one(20)], 0.0)
    there.gone(one(10).name)
    after = book(tmp_path)
    assert after.copies == (one(20),)
    assert not after.is_fresh


def test_a_damaged_record_counts_as_never_seen(tmp_path: Path) -> None:
    (tmp_path / "mirror.json").write_bytes(b'{"v":1,"copies":[')
    assert not book(tmp_path).has_record


KEEP = RetentionPolicy(2, None, frozenset())
HERE = [one(10), one(20)]


def beside(mirror: MirrorState, now: float = 100.0) -> Job | None:
    return mirror_job(mirror, HERE, FROM_THE_START, KEEP, now)


def test_it_looks_first_then_copies_the_newest_first_and_then_nothing_is_to_be_done(tmp_path: Path) -> None:
    mirror = book(tmp_path)
    assert beside(mirror) == Job("sync")
    mirror.listed([], 100.0)
    for there in (HERE[1:], HERE):
        assert beside(mirror) == Job("sync", there[0])
        mirror.listed(there, 100.0)
    assert beside(mirror) is None
    assert mirror.status(None) == {
        "step": 20, "copies": 2, "waiting": 0, "copying": None, "trouble": None,
    }  # fmt: skip
    assert beside(mirror, 100.0 + LOOK_AGAIN_S) == Job("sync")


@pytest.mark.parametrize("was_proven", [True, False])
def test_nothing_is_pruned_before_the_newest_copy_was_proven(tmp_path: Path, was_proven: bool) -> None:
    mirror = book(tmp_path)
    mirror.listed([one(step) for step in (1, 2, 10, 20)], 100.0)
    if was_proven:
        mirror.proven.add(one(20).name)
    assert beside(mirror) == (Job("sync", (one(1).name, one(2).name)) if was_proven else None)


def test_a_failed_copy_is_trouble_until_a_copy_succeeds(tmp_path: Path) -> None:
    mirror = book(tmp_path)
    mirror.listed([], 100.0)
    assert mirror.failed("copy", "warm is full", 100.0)
    assert beside(mirror, mirror.retry_at - 0.01) is None
    assert beside(mirror, mirror.retry_at) == Job("sync")
    assert not mirror.worked("list") and mirror.trouble == "warm is full"  # a look does not mend it
    assert mirror.worked("copy") and mirror.trouble is None


def test_trouble_that_lasts_is_reported_once_in_ten_minutes_and_tried_again_for_ever(tmp_path: Path) -> None:
    mirror, now, reported = book(tmp_path), 0.0, []
    while now < 2 * COMPLAINT_S:
        if mirror.failed("list", "not mounted", now):
            reported.append(now)
        assert now < mirror.retry_at <= now + 60.0
        now = mirror.retry_at
    assert len(reported) == 2


@pytest.fixture
def shelf(tmp_path: Path) -> Checkpoints:
    pipeline = make_pipeline(tmp_path, train__checkpoint={"keep_last": 1}).pipeline
    pipeline.layout.create()
    run = pipeline.layout.run("main")
    run.create()
    shelf = Checkpoints(pipeline)
    for step in (10, 20, 30):
        proof = prove_checkpoint(seal(run.checkpoints, step))
        assert proof.body is not None
        shelf.proven(f"step-{step:09d}", proof.body.raw, str(proof.digest))
    return shelf


def test_retention_leaves_alone_what_the_mirror_reads_until_it_has_read_it(shelf: Checkpoints) -> None:
    with reading(shelf.path("step-000000010")):
        assert shelf.prune() == [20]
    assert shelf.prune() == [10]


def test_what_is_to_be_rolled_back_to_is_kept(shelf: Checkpoints) -> None:
    shelf.kept.add("step-000000010")
    assert shelf.prune() == [20]


def test_a_name_that_was_moved_away_is_trusted_no_longer(shelf: Checkpoints, tmp_path: Path) -> None:
    shelf.path("step-000000030").rename(tmp_path / "abandoned")
    shelf.forget_missing()
    assert shelf.newest is not None
    assert shelf.newest.step == 20
    assert {copy.step for copy in shelf.to_mirror()} == {10, 20}


def test_proofs_are_taken_over_of_checkpoints_that_are_still_the_same(
    shelf: Checkpoints, tmp_path: Path
) -> None:
    shelf.kept.add("step-000000020")
    body = shelf.path("step-000000020") / "checkpoint.json"
    body.write_bytes(body.read_bytes() + b" ")
    shelf.path("step-000000030").rename(tmp_path / "gone")
    again = Checkpoints(make_pipeline(tmp_path).pipeline)
    again.adopt(json.loads(json.dumps(shelf.handed_over())))
    assert again.newest == shelf.get("step-000000010")
    assert again.kept == {"step-000000020"}
