"""Restoring: the trainer's path holds the proven state, whole, and nothing of the user's is lost."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from crash import Crash, check_crashes
from stoker.checkpoints.external import restoring, worker
from stoker.checkpoints.external.find import look_at
from stoker.checkpoints.external.restoring import Restored, restore
from stoker.checkpoints.external.worker import main, next_look_s
from stoker.kit.workers.child import Report
from stoker.store.errors import DataError
from stoker.store.record import new_id
from support.outside import AT_REST, Ground, hf_files, name_before, write_tree

AT = "20261123T030000Z-0123abcd"


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.fixture
def report() -> Iterator[Report]:
    reading, writing = os.pipe()
    yield Report(writing)
    os.close(reading)
    os.close(writing)


def body_of(ground: Ground, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (ground.checkpoints / f"step-{step:09d}" / "checkpoint.json").read_bytes()
    )
    return found


def restored(ground: Ground, step: int) -> Restored:
    path = ground.checkpoints / f"step-{step:09d}"
    body = body_of(ground, step)
    return restore(path, body, ground.root, run_id="r1", at=AT, progress=lambda _: None)


def task(ground: Ground, step: int | None, **changes: Any) -> dict[str, Any]:
    """The worker's task of a restoration to a sealed step, or to the run's beginning."""
    sealed = None if step is None else str(ground.checkpoints / f"step-{step:09d}")
    return {
        **{"verb": "restore", "directory": str(ground.root), "pattern": "out/*", "begun": 0.0},
        **{
            "state": str(ground.root / "state"),
            "replaced": str(ground.abandoned / "replaced"),
            "checkpoints": str(ground.checkpoints),
            "history": [[0, None]],
            "run_id": "r1",
            "at": new_id(),
        },
        "given_up": [str(one) for one in ground.abandoned.iterdir()],
        **{"sealed": sealed, "body": None if step is None else body_of(ground, step)},
        **{"is_first": False, "origin": None, "unsure": [], "keep": 3, "keep_bytes": 1 << 30},
        **changes,
    }


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_only_a_slow_listing_delays_the_next_look_and_by_half_a_minute_at_most() -> None:
    looks = [
        (0.01, 0.0),
        (0.1, 0.0),
        (12.0, 11.99),
        (12.1, 12.0),
        (100.0, 0.0),
    ]  # seconds, and those of copies
    assert [round(next_look_s(2.0, *one), 1) for one in looks] == [2.0, 5.0, 2.0, 5.0, 30.0]


def test_an_equal_path_is_left_alone_and_another_is_put_aside(ground: Ground) -> None:
    path = write_tree(ground.out / "checkpoint-5", {**hf_files(), "deep/x.bin": b"x"})
    (path / "optimizer.pt").chmod(0o755)
    before = look_at(path)
    ground.watch().scan(AT_REST)
    assert restored(ground, 5) == (path, False, None)
    assert look_at(path) == before

    write_tree(path, {"optimizer.pt": b"torn"})
    found = restored(ground, 5)
    assert found == (path, True, ground.out / f".stoker-before-{AT}-checkpoint-5")
    assert found.aside is not None
    assert (found.aside / "optimizer.pt").read_bytes() == b"torn"
    assert look_at(path).mark == before.mark  # also the times: it is known, and not sealed again
    assert files_below(path) == {**hf_files(), "deep/x.bin": b"x"}
    assert (path / "optimizer.pt").stat().st_mode & 0o777 == 0o755
    assert sorted(one.name for one in ground.out.iterdir()) == [
        f".stoker-before-{AT}-checkpoint-5",
        "checkpoint-5",
    ]


@pytest.mark.parametrize("how", ["missing", "extra file", "a link", "a file in its place", "no parent"])
def test_whatever_is_at_the_path_it_becomes_the_sealed_state(ground: Ground, how: str) -> None:
    path = write_tree(ground.out / "checkpoint-5", hf_files())
    ground.watch().scan(AT_REST)
    match how:
        case "extra file":
            write_tree(path, {"pytorch_model.bin": b"of another save"})
        case "no parent":
            ground.out.rename(ground.root / "moved")
        case _:
            path.rename(ground.root / "moved")
    if how == "a link":
        path.symlink_to(ground.root / "moved")
    elif how == "a file in its place":
        path.write_bytes(b"")
    assert restored(ground, 5).is_written
    assert not path.is_symlink()
    assert files_below(path) == hf_files()


def test_a_sealed_copy_that_rots_meanwhile_is_never_restored(ground: Ground) -> None:
    path = ground.save("ckpt.pt", b"state")
    ground.watch().scan(AT_REST)
    copy = ground.checkpoints / "step-000000000" / "files" / "ckpt.pt"
    copy.write_bytes(copy.read_bytes()[::-1])
    path.write_bytes(b"newer")
    with pytest.raises(DataError, match="not what was proven"):
        restored(ground, 0)
    assert path.read_bytes() == b"newer"


def test_a_restoration_survives_every_crash() -> None:
    old = {"a.bin": b"newer, not sealed", "deep/c.bin": b"c"}
    good = {"a.bin": b"sealed" * 20, "deep/b.bin": b"b"}

    def prepare(root: Path) -> None:
        ground = Ground(root)
        path = write_tree(ground.out / "checkpoint-5", good)
        ground.watch().scan(AT_REST)
        restoring.remove_durably(path)
        write_tree(path, old)

    def write(root: Path) -> None:
        restored(Ground(root), 5)

    def invariant(root: Path, crash: Crash) -> None:
        out = Ground(root).out
        there = {one.name: files_below(one) for one in out.iterdir()}
        # Recovery, as the next start: the path is right, what lay there is kept, no temporary is left.
        assert there == {"checkpoint-5": good, f".stoker-before-{AT}-checkpoint-5": old}

    def recover(root: Path) -> None:
        path = Ground(root).out / "checkpoint-5"
        assert not path.exists() or files_below(path) in (old, good)  # never half of one
        restored(Ground(root), 5)

    report = check_crashes(write, recover, invariant, prepare=prepare, max_states=400)
    assert report.trees > 20


def test_newer_half_and_given_up_states_are_put_aside_and_no_others(ground: Ground, report: Report) -> None:
    for step in (10, 20, 30):
        ground.save(f"step-{step}.pt", b"%d" % step)
    ground.save("best.pt", b"best")
    ground.watch().scan(AT_REST)
    ground.save("unsealed.pt", b"whole")
    (ground.out / "last.pt").write_bytes(ground.save("last.pt", b"x" * 1000).read_bytes()[:-5])
    (ground.out / "step-5.pt").write_bytes(b"PK\x03\x04 half, and older")
    (ground.abandoned / "t0").mkdir()
    for step in (30, 31):  # the run was rolled back to step 20; best.pt was sealed as 31
        name = f"step-{step:09d}"
        (ground.checkpoints / name).rename(ground.abandoned / "t0" / name)

    found = main(task(ground, 20), report)
    assert found["status"] == "equal"
    assert sorted(name_before(Path(one).name) for one in found["aside"]) == [
        *("best.pt", "last.pt", "step-30.pt"),
    ]
    left = sorted(one.name for one in ground.out.iterdir() if ".stoker-before-" not in one.name)
    assert left == ["step-10.pt", "step-20.pt", "step-5.pt", "unsealed.pt"]
    # At the beginning nothing may be resumed from.
    assert len(main(task(ground, None), report)["aside"]) == 4


def test_what_cannot_be_put_aside_or_removed_is_told_and_keeps_no_launch_from_beginning(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests run as root, who may rename and remove everything."""
    ground.save("step-10.pt", b"10")
    ground.watch().scan(AT_REST)
    ground.save("step-20.pt", b"20")
    for name in ("put_aside", "drop_asides"):
        monkeypatch.setattr(worker, name, _refused)
    told = list[tuple[str, dict[str, Any]]]()
    report = cast(Report, lambda word, **words: told.append((word, words)))
    report.stopping = False
    found = main(task(ground, 10), report)
    assert (found["status"], found["aside"], found["dropped"]) == ("equal", [], [])
    [words] = [words for word, words in told if word == "refused"]
    assert (words["path"], words["is_newest"]) == (str(ground.out / "step-20.pt"), True)
    assert "cannot be put aside" in words["reason"] and "Permission denied" in words["reason"]


def _refused(*_: Any, **__: Any) -> Path:
    raise PermissionError(errno.EACCES, "Permission denied", "out")


def test_what_is_put_aside_is_kept_within_a_budget(ground: Ground, report: Report) -> None:
    ground.save("step-10.pt", b"10")
    ground.watch().scan(AT_REST)
    dropped = []
    for number in range(5):
        write_tree(ground.out / "step-20.pt", {"x": b"%d" % number})
        at = f"2026112{number}T000000Z-00000000"
        dropped += main(task(ground, 10, at=at), report)["dropped"]
    assert [Path(one).name for one in dropped] == [
        f".stoker-before-2026112{number}T000000Z-00000000-step-20.pt" for number in (0,)
    ]
    ours = ground.out / "step-20.pt.before-yesterday"
    ours.mkdir()  # the user's own, which the glob matches
    last = Path(main(task(ground, 10, keep=0), report)["aside"][0]).name  # never at once
    assert sorted(one.name for one in ground.out.iterdir()) == [last, "step-10.pt"]


def test_a_run_does_not_begin_on_another_runs_checkpoints(ground: Ground, report: Report) -> None:
    path = ground.save("step-10.pt", b"another run's")
    found = main(task(ground, None, is_first=True), report)
    assert (found["status"], found["path"]) == ("occupied", str(path))


def test_beside_init_from_newer_ones_are_put_aside_and_nothing_of_before_the_run_is_removed(
    ground: Ground, report: Report
) -> None:
    for step in (10, 20, 30, 40, 50, 60):
        os.utime(ground.save(f"step-{step}.pt", b"%d, another run's" % step), (1000, 1000))
    origin = str(ground.out / "step-20.pt")
    first = {"is_first": True, "origin": origin, "begun": 2000.0, "keep": 1}
    assert main(task(ground, None, **first), report)["status"] == "none"
    assert len(list(ground.out.iterdir())) == 6
    watch = ground.watch()
    watch.seal_origin(Path(origin))
    main(task(ground, 20, **first), report)
    assert main(task(ground, 20, **{**first, "is_first": False}), report)["dropped"] == []
    left = sorted(name_before(one.name) for one in ground.out.iterdir())
    assert left == [f"step-{step}.pt" for step in (10, 20, 30, 40, 50, 60)]
    assert (ground.out / "step-10.pt").exists()


def test_a_glob_over_stokers_own_directory_takes_and_moves_nothing_of_it(
    ground: Ground, report: Report
) -> None:
    for step in (10, 20):
        ground.save(f"step-{step}.pt", b"%d" % step)
    pattern = "**/*-*"  # also state/checkpoints/step-000000010, and files/step-10.pt in it
    ground.watch(pattern).scan(AT_REST)
    assert ground.sealed == ["step-000000010", "step-000000020"]
    assert ground.told("refused") == []
    before = files_below(ground.root / "state")
    found = main(task(ground, 10, pattern=pattern), report)
    assert [name_before(Path(one).name) for one in found["aside"]] == ["step-20.pt"]
    assert files_below(ground.root / "state") == before


def test_a_match_of_a_thousand_nested_folders_or_with_a_long_name_keeps_no_launch_from_beginning(
    ground: Ground, report: Report, nest: Callable[[Path], None]
) -> None:
    ground.save("step-10.pt", b"10")
    ground.watch().scan(AT_REST)
    long, deep = "step-30-" + "x" * 247, ground.out / "step-20"
    ground.save(long, b"30")
    for number in range(3):
        nest(deep)
        found = main(task(ground, 10, keep=1, at=f"2026112{number}T000000Z-00000000"), report)
        assert found["status"] == "equal"
    assert len(found["aside"]) == 1
    assert len(list(ground.out.iterdir())) == 3  # also the one kept of those before
