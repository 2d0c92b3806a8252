"""The crash checker itself: it finds every planted fault and passes the write paths without one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crash import Crash, CrashFound, acknowledge, check_crashes


def nothing(root: Path) -> None:
    pass


def put(root: Path, *, sync_file: bool = True, sync_dir: bool = True, rename: bool = True) -> None:
    """Replace `file` by "new" the way it should be done, less what the test plants."""
    descriptor = os.open(
        root / ("temporary" if rename else "file"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640
    )
    os.write(descriptor, b"new content")
    if sync_file:
        os.fsync(descriptor)
    os.close(descriptor)
    if rename:
        os.rename(root / "temporary", root / "file")
    if sync_dir:
        sync_directory(root)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def old(root: Path) -> None:
    (root / "file").write_bytes(b"old")


def old_or_new(root: Path, crash: Crash) -> None:
    content = (root / "file").read_bytes()
    assert content in ((b"new content",) if crash.complete else (b"old", b"new content"))


def test_a_synced_and_renamed_file_survives_every_crash() -> None:
    report = check_crashes(put, nothing, old_or_new, prepare=old)
    assert report.exhaustive
    assert report.trees > 5


@pytest.mark.parametrize(
    "write",
    [
        lambda root: put(root, sync_file=False),
        lambda root: put(root, sync_dir=False),
        lambda root: put(root, rename=False),
    ],
    ids=[
        "the file's fsync is missing",
        "the directory's fsync is missing",
        "the file is overwritten in place",
    ],
)
def test_a_planted_fault_is_found(write: Callable[[Path], None]) -> None:
    with pytest.raises(CrashFound):
        check_crashes(write, nothing, old_or_new, prepare=old)


def test_the_finding_tells_what_was_lost_and_why_it_matters() -> None:
    with pytest.raises(CrashFound, match=r"(?s)lost +write temporary \+11.*CRASH  here") as found:
        check_crashes(lambda root: put(root, sync_file=False), nothing, old_or_new, prepare=old)
    assert isinstance(found.value.__cause__, AssertionError)


def test_an_acknowledgement_before_the_sync_is_found() -> None:
    def write(root: Path, early: bool) -> None:
        descriptor = os.open(root / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        sync_directory(root)
        for number in range(3):
            os.write(descriptor, b"%d" % number)
            if early:
                acknowledge(number)
            os.fdatasync(descriptor)
            if not early:
                acknowledge(number)
        os.close(descriptor)

    def keeps_what_was_acknowledged(root: Path, crash: Crash) -> None:
        wanted = "".join(map(str, crash.acknowledged))
        if wanted:
            assert (root / "log").read_text().startswith(wanted)

    check_crashes(lambda root: write(root, early=False), nothing, keeps_what_was_acknowledged)
    with pytest.raises(CrashFound):
        check_crashes(lambda root: write(root, early=True), nothing, keeps_what_was_acknowledged)


def test_a_new_directory_is_lost_with_all_in_it_until_its_parent_is_synced() -> None:
    def write(root: Path, sync_parent: bool) -> None:
        os.mkdir(root / "new")
        if sync_parent:
            sync_directory(root)
        put(root / "new")

    def there_at_the_end(root: Path, crash: Crash) -> None:
        assert not crash.complete or (root / "new" / "file").read_bytes() == b"new content"

    check_crashes(lambda root: write(root, sync_parent=True), nothing, there_at_the_end)
    with pytest.raises(CrashFound):
        check_crashes(lambda root: write(root, sync_parent=False), nothing, there_at_the_end)


def test_writes_behind_the_recorder_are_seen_and_their_missing_sync_found() -> None:
    def write(root: Path, sync: bool) -> None:
        with (root / "temporary").open("w") as file:
            file.write("new content")
            if sync:
                file.flush()
                os.fsync(file.fileno())
        (root / "temporary").replace(root / "file")
        sync_directory(root)

    check_crashes(lambda root: write(root, sync=True), nothing, old_or_new, prepare=old)
    with pytest.raises(CrashFound):
        check_crashes(lambda root: write(root, sync=False), nothing, old_or_new, prepare=old)


def test_an_unlink_that_is_not_synced_may_come_back() -> None:
    def gone_at_the_end(root: Path, crash: Crash) -> None:
        assert not (crash.complete and (root / "file").exists())

    def write(root: Path) -> None:
        os.unlink(root / "file")
        sync_directory(root)

    check_crashes(write, nothing, gone_at_the_end, prepare=old)
    with pytest.raises(CrashFound):
        check_crashes(lambda root: os.unlink(root / "file"), nothing, gone_at_the_end, prepare=old)


def test_many_states_are_sampled_by_seed_within_the_bound() -> None:
    def write(root: Path) -> None:
        for number in range(20):
            put(root, sync_file=False, sync_dir=False)
            os.rename(root / "file", root / f"file-{number}")

    def trees(seed: int) -> list[list[str]]:
        seen: list[list[str]] = []
        report = check_crashes(
            write, nothing, lambda root, _: seen.append(sorted(os.listdir(root))), max_states=200, seed=seed
        )
        assert not report.exhaustive
        assert report.states <= 200
        return seen

    assert trees(seed=1) == trees(seed=1)
    assert trees(seed=1) != trees(seed=2)


def test_the_real_functions_are_back_afterwards() -> None:
    before = {name: getattr(os, name) for name in ("open", "write", "fsync", "rename", "unlink", "mkdir")}
    with pytest.raises(ZeroDivisionError):
        check_crashes(lambda root: 1 / 0, nothing, old_or_new)
    assert before == {name: getattr(os, name) for name in before}
