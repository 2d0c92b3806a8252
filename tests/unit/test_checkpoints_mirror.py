"""The mirror's decisions: what is copied next, what may go, what is fallen back on; and its names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoints.mirror.layout import (
    Mirrored,
    fallback,
    list_mirror,
    superfluous,
    waiting,
)
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.retention import RetentionPolicy, reading, remove_checkpoint
from support.checkpoint_data import seal

HISTORY = [(1, None), (0, 300)]
LAST_TWO = RetentionPolicy(keep_last=2, keep_best=0)


def there(timeline: int, *steps: int, run_id: str | None = "r") -> list[Mirrored]:
    return [Mirrored(timeline, step, f"{step:08x}", run_id=run_id) for step in steps]


def names(*copies: Mirrored) -> set[str]:
    return {one.name for one in copies}


def steps(found: list[Mirrored]) -> list[int]:
    return [one.step for one in found]


def test_the_newest_proven_goes_first() -> None:
    assert steps(waiting(there(1, 310, 320), [], HISTORY, LAST_TWO)) == [320, 310]


def test_what_is_mirrored_or_lies_past_a_fork_does_not_wait() -> None:
    proven = [*there(0, 290, 310), *there(1, 320)]
    assert steps(waiting(proven, there(1, 320), HISTORY, LAST_TWO)) == [290]


def test_a_copy_whose_checkpoint_json_is_no_help_is_made_again() -> None:
    assert steps(waiting(there(1, 320), there(1, 320, run_id=None), HISTORY, LAST_TWO)) == [320]


def test_another_content_of_the_same_step_is_copied_beside_the_first() -> None:
    other = [Mirrored(1, 320, "ffffffff", run_id="r")]
    assert steps(waiting(there(1, 320), other, HISTORY, LAST_TWO)) == [320]


def test_what_the_mirrors_retention_would_drop_at_once_is_not_worth_the_way() -> None:
    behind = there(1, 310, 320, 330)
    assert steps(waiting(behind, there(1, 330), HISTORY, LAST_TWO)) == [320]
    milestone = RetentionPolicy(keep_last=2, keep_best=0, milestones=frozenset({310}))
    assert steps(waiting(behind, there(1, 330), HISTORY, milestone)) == [320, 310]


def test_retention_on_the_mirror_is_the_same_policy() -> None:
    copies = [
        *there(0, 100, 200, 300),
        *there(1, 310, 320, 330),
        Mirrored(1, 305, "00000131", run_id="r", val_loss=1.0),
    ]
    policy = RetentionPolicy(keep_last=2, keep_every=200, milestones=frozenset({100}), keep_best=1)
    assert steps(superfluous(copies, HISTORY, policy, names(*there(1, 330)))) == [300, 310]


def test_what_lies_past_the_fork_goes_once_the_new_timeline_has_a_copy_of_its_own() -> None:
    left_behind = there(0, 200, 300, 310, 320)
    keep_all = RetentionPolicy(keep_last=9)
    assert superfluous(left_behind, HISTORY, keep_all, names(*there(0, 300))) == []
    with_new = [*left_behind, *there(1, 305)]
    assert steps(superfluous(with_new, HISTORY, keep_all, names(*there(1, 305)))) == [310, 320]


def test_nothing_goes_unless_the_newest_there_was_proven() -> None:
    copies = there(1, 310, 320, 330, 340)
    assert superfluous(copies, HISTORY, LAST_TWO, names(*there(1, 330), *there(0, 340))) == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), unique=True, min_size=1),
    st.integers(1, 3),
    st.integers(0, 20),
)
def test_the_newest_copy_of_the_history_always_stays(
    found: list[tuple[int, int]], keep_last: int, fork: int
) -> None:
    history = [(3, None), (1, fork)]
    copies = [one for timeline, step in found for one in there(timeline, step)]
    usable = fallback(copies, history, -1)
    if not usable:
        return
    gone = superfluous(copies, history, RetentionPolicy(keep_last, keep_best=0), names(usable[0]))
    left = [one for one in copies if one not in gone]
    assert fallback(left, history, -1)[0].step == usable[0].step


def test_the_fallback_is_newer_than_what_is_here_on_the_history_and_newest_first() -> None:
    copies = [*there(0, 250, 300, 310), *there(1, 305, 320), *there(2, 900)]
    assert steps(fallback(copies, HISTORY, 250)) == [320, 305, 300]


def test_a_look_finds_copies_by_name_and_says_what_checkpoint_json_says(tmp_path: Path) -> None:
    path = seal(tmp_path / "made", 20, timeline=1, val_loss=2.5)
    proof = prove_checkpoint(path)
    assert proof.body is not None and proof.digest is not None
    copy = tmp_path / "mirror" / Mirrored.of(proof.body.raw, proof.digest).name
    copy.parent.mkdir(parents=True)
    path.rename(copy)
    torn = tmp_path / "mirror" / "t0" / "step-000000010-00000000"
    torn.mkdir(parents=True)
    for stray in ("t0/.tmp-step-000000010-00000000", "t01/step-000000010-00000000", "t0/step-10-00000000"):
        (tmp_path / "mirror" / stray).mkdir(parents=True)
    found = {one.name: one for one in list_mirror(tmp_path / "mirror")}
    assert set(found) == {f"t1/step-000000020-{proof.digest[:8]}", "t0/step-000000010-00000000"}
    whole = found[f"t1/step-000000020-{proof.digest[:8]}"]
    assert (whole.run_id, whole.val_loss) == ("ab" * 16, 2.5)
    assert found["t0/step-000000010-00000000"].run_id is None
    assert list_mirror(tmp_path / "nowhere") == []


def test_a_copy_is_proven_under_its_name_and_under_no_other(tmp_path: Path) -> None:
    path = seal(tmp_path, 20)
    digest = prove_checkpoint(path).digest
    assert digest is not None
    right = path.rename(tmp_path / f"{path.name}-{digest[:8]}")
    assert prove_checkpoint(right).verdict == "proven"
    wrong = right.rename(tmp_path / f"{path.name}-00000000")
    proof = prove_checkpoint(wrong)
    assert proof.verdict == "invalid"
    assert "ends in 00000000" in proof.reason


def test_what_is_being_read_is_not_removed(tmp_path: Path) -> None:
    path = seal(tmp_path, 20)
    with reading(path):
        assert not remove_checkpoint(path)
    assert prove_checkpoint(path).verdict == "proven"
    assert remove_checkpoint(path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError), reading(path):
        pass
