"""Which checkpoint is resumed from, which are kept, and where the bad ones go."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crash import Crash, check_crashes
from stoker.checkpoints.format import CheckpointBody
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.quarantine import drop_over_budget, quarantine_checkpoint, quarantined
from stoker.checkpoints.retention import (
    CheckpointEntry,
    RetentionPolicy,
    abandoned,
    candidates,
    counts,
    find_checkpoints,
    prune,
    remove_checkpoint,
    sweep_leftovers,
)
from stoker.store.record import read_record
from support.checkpoint_data import seal

HISTORY = [(2, None), (1, 500), (0, 300)]


def found(step: int, timeline: int | None) -> CheckpointEntry:
    body = None if timeline is None else CheckpointBody(step, 0, (0, 0), timeline, "", {}, {})
    return CheckpointEntry(Path(f"step-{step:09d}"), step, body)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_candidates_are_those_of_the_history_newest_first() -> None:
    there = [found(300, 0), found(400, 0), found(500, 1), found(501, 1), found(700, 2), found(600, None)]
    assert [one.step for one in candidates(there, HISTORY)] == [700, 600, 500, 300]
    assert [one.step for one in abandoned(there, HISTORY)] == [400, 501]


@pytest.mark.parametrize(
    ("timeline", "step", "expected"), [(0, 300, True), (0, 301, False), (2, 10**6, True), (3, 1, False)]
)
def test_a_step_counts_up_to_the_fork(timeline: int, step: int, expected: bool) -> None:
    assert counts(timeline, step, HISTORY) is expected


def test_only_sealed_directories_are_found_and_damaged_ones_among_them(tmp_path: Path) -> None:
    seal(tmp_path, 5)
    seal(tmp_path, 10, timeline=1)
    (seal(tmp_path, 15) / "checkpoint.json").write_text("{")
    (tmp_path / ".tmp-step-l1-000000020").mkdir()
    (tmp_path / "step-20").mkdir()
    (tmp_path / "step-000000025").write_text("a file")
    (tmp_path / "step-000000030").symlink_to(tmp_path / "step-000000005")
    there = sorted((one.step, one.timeline) for one in find_checkpoints(tmp_path) if one.step != 15)
    assert there == [(5, 0), (10, 1)]
    assert [one.timeline for one in find_checkpoints(tmp_path) if one.step == 15] == [None]
    assert find_checkpoints(tmp_path / "nowhere") == []


def test_the_last_the_best_the_milestones_and_every_kth_are_kept() -> None:
    losses = {100: 3.0, 200: 2.0, 300: 2.5}
    there = {step: losses.get(step) for step in range(100, 1001, 100)}
    policy = RetentionPolicy(keep_last=2, keep_every=500, milestones=frozenset({300}))
    assert prune(there, policy) == [100, 400, 600, 700, 800]


@given(st.lists(st.integers(0, 99), unique=True), st.integers(0, 3))
def test_the_newest_is_never_pruned(steps: list[int], keep_last: int) -> None:
    gone = prune(dict.fromkeys(steps), RetentionPolicy(keep_last=keep_last, keep_best=0))
    assert set(gone) <= set(sorted(steps)[:-1])
    assert len(steps) - len(gone) == min(len(steps), max(1, keep_last))


@pytest.mark.parametrize("place", ["step-000000005", ".tmp-pruned-step-000000005"])
def test_a_removal_takes_a_link_away_and_leaves_what_it_points_to(tmp_path: Path, place: str) -> None:
    root, elsewhere = tmp_path / "root", seal(tmp_path / "elsewhere", 5)
    seal(root, 5) if place.startswith(".tmp") else root.mkdir()
    (root / place).symlink_to(elsewhere)
    assert remove_checkpoint(root / "step-000000005")
    assert names(root) == []
    assert prove_checkpoint(elsewhere).verdict == "proven"


def test_a_removal_leaves_a_whole_checkpoint_or_none_after_every_crash() -> None:
    def prepare(root: Path) -> None:
        seal(root, 5)
        seal(root, 10)

    def invariant(root: Path, crash: Crash) -> None:
        assert {"step-000000010"} <= set(names(root)) <= {"step-000000005", "step-000000010"}
        assert not (crash.complete and (root / "step-000000005").exists())
        for name in names(root):
            assert prove_checkpoint(root / name).verdict == "proven"

    check_crashes(
        lambda root: remove_checkpoint(root / "step-000000005"), sweep_leftovers, invariant, prepare=prepare
    )


def test_a_bad_checkpoint_is_moved_with_its_reason(tmp_path: Path) -> None:
    path = seal(tmp_path / "checkpoints", 5)
    moved = quarantine_checkpoint(
        tmp_path / "quarantine", path, "sha256 of trainer.json differs", keep=3, keep_bytes=1 << 30
    )  # fmt: skip
    assert not path.exists()
    assert moved.dropped == ()
    assert names(moved.place) == ["reason.json", "step-000000005"]
    record = read_record(moved.place / "reason.json")
    assert (record["kind"], record["reason"]) == ("checkpoint", "sha256 of trainer.json differs")
    assert record["path"] == str(path)


def test_the_quarantine_keeps_to_its_count_and_drops_the_oldest(tmp_path: Path) -> None:
    places = []
    dropped: list[str] = []
    for step in range(1, 5):
        path = seal(tmp_path / "checkpoints", step)
        moved = quarantine_checkpoint(tmp_path / "quarantine", path, "bad", keep=2, keep_bytes=1 << 30)
        aged = moved.place.with_name(f"checkpoint-{path.name}-20260101T00000{step}Z-aa")
        moved.place.rename(aged)
        places.append(aged.name)
        dropped += moved.dropped
    (tmp_path / "quarantine" / "parquet-x-20250101T000000Z-aa").mkdir()
    assert dropped == places[:2]
    assert [place.name for place in quarantined(tmp_path / "quarantine")] == places[2:]


def test_the_quarantine_drops_what_was_sealed_first_whatever_was_convicted_first(tmp_path: Path) -> None:
    dropped: list[str] = []
    made = [("old", 90), ("main", 10), ("main", 20), ("main", 30)]
    paths = {(run, step): seal(tmp_path / run / "checkpoints", step) for run, step in made}
    for each in (("main", 30), ("main", 20), ("main", 10), ("old", 90)):
        path = paths[each]
        moved = quarantine_checkpoint(tmp_path / "quarantine", path, "bad", keep=3, keep_bytes=1 << 30)
        dropped += [name.rsplit("-", 2)[0] for name in moved.dropped]
    assert dropped == ["checkpoint-step-000000090"]  # of an earlier run
    for left in (["step-000000020", "step-000000030"], ["step-000000030"]):
        drop_over_budget(tmp_path / "quarantine", keep=len(left), keep_bytes=1 << 30)
        assert sorted(path.parent.name for path in tmp_path.glob("quarantine/*/*/SHA256SUMS")) == left


def test_the_quarantine_keeps_to_its_bytes_but_for_the_newest(tmp_path: Path) -> None:
    oldest, middle, newest = (f"checkpoint-step-00000000{n}-20260101T00000{n}Z-aa" for n in (1, 2, 3))
    for name in (oldest, middle, newest):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model").write_bytes(bytes(1000))
    assert drop_over_budget(tmp_path, keep=5, keep_bytes=2500) == (oldest,)
    assert drop_over_budget(tmp_path, keep=5, keep_bytes=10) == (middle,)
    assert names(tmp_path) == [newest]
    assert drop_over_budget(tmp_path, keep=0, keep_bytes=10) == (newest,)
