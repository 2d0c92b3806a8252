"""Settling, choosing the tokenizer's files, judging workers, reconciling with hot: pure decisions."""

from __future__ import annotations

import errno
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.corpus.records.dataset import choose_training_set
from stoker.corpus.records.receipts import Listing, Receipt
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.outcome import Evidence, convicted, judge
from stoker.corpus.source.folder import FileSeen, FolderRules, Watched, is_rot, settling, watch
from stoker.corpus.staging.disk_contents import ScanResult, parquet_name, reconcile_hot
from stoker.kit.workers.parent import WorkerExit
from stoker.store.errors import DataError
from stoker.store.layout import HotLayout


def file(path: str, size: int = 10, mtime_ns: int = 1) -> FileSeen:
    return FileSeen(path, size, mtime_ns, 7)


def receipt_of(seen: FileSeen, **changes: str) -> Receipt:
    return replace(
        Receipt("d", seen.path, f"/f/{seen.path}", seen.size, "a" * 64, "", seen.etag, "verified"), **changes
    )


def new(*files: FileSeen, since: float = 0.0) -> list[Watched]:
    """Files as a look found them, quiet since then."""
    return [Watched(each, since) for each in files]


def settles_at(watched: dict[str, Watched], now: float) -> dict[str, float]:
    return settling(watched.values(), now, 10.0)


def test_a_file_settles_by_our_own_clock_and_any_change_starts_it_again() -> None:
    before = watch({}, new(file("a")), 0.0)
    assert watch(before, new(file("a")), 9.0)["a"].since == 0.0
    for changed in (file("a", size=11), file("a", mtime_ns=2), FileSeen("a", 10, 1, 8)):
        assert watch(before, new(changed, since=-50.0), 9.0)["a"].since == 9.0
    linked = watch(before, new(FileSeen("a", 10, 1, 7, ctime_ns=5), since=9.0), 9.0)
    assert linked["a"].since == 0.0
    assert settles_at(before, 9.9) == {"a": 10.0}
    assert settles_at(before, 10.0) == {}


@pytest.mark.parametrize(
    ("age_s", "settles_in_s"),
    [(3600.0, 0.0), (10.0, 0.0), (9.0, 1.0), (0.5, 9.5), (0.0, 10.0), (-3600.0, 10.0)],
)
def test_a_file_is_quiet_since_its_ctime_however_often_we_start_and_whatever_its_mtime_says(
    age_s: float, settles_in_s: float
) -> None:
    wall_ns = 1_700_000_000 * 10**9
    copied = replace(file("a", mtime_ns=1), ctime_ns=wall_ns - int(age_s * 1e9))  # as `cp -p` leaves it
    first = Watched.first(copied, now=500.0, wall_ns=wall_ns, settle_s=10.0)
    assert first.since + 10.0 == pytest.approx(500.0 + settles_in_s, abs=0.1)
    watched = watch({}, [first], 500.0)
    assert settles_at(watched, 500.0 + settles_in_s + 0.1) == {}
    assert not settles_in_s or settles_at(watched, 500.0 + settles_in_s - 0.1)


def test_a_file_that_grows_with_every_look_never_settles_and_then_does() -> None:
    watched: dict[str, Watched] = {}
    for look in range(20):
        watched = watch(watched, new(file("a", size=look)), look * 4.0)
        assert settles_at(watched, look * 4.0 + 3.9)
    assert settles_at(watched, 80.0) == {"a": 86.0}
    assert settles_at(watched, 86.0) == {}


SEEN = file("a")
MOVED, EDITED, COPIED = "/elsewhere/a", replace(SEEN, mtime_ns=2), replace(SEEN, inode=8)


@pytest.mark.parametrize(
    ("changes", "seen", "state", "is_pending"),
    [
        (None, SEEN, "waiting", True),
        ({}, SEEN, "verified", False),
        ({}, EDITED, "waiting", True),
        ({}, COPIED, "waiting", True),
        ({"file": MOVED}, SEEN, "waiting", True),
        ({"state": "disputed"}, SEEN, "disputed", True),
        ({"state": "disputed"}, EDITED, "disputed", True),
        ({"state": "disputed", "found": "f" * 64}, SEEN, "rotten", False),
        ({"state": "disputed", "found": "f" * 64}, EDITED, "disputed", True),
    ],
)
def test_a_file_is_hashed_unless_its_receipt_speaks_of_it_as_it_is_now(
    changes: dict[str, str] | None, seen: FileSeen, state: str, is_pending: bool
) -> None:
    receipt = None if changes is None else receipt_of(SEEN, **changes)
    assert FolderRules("/f").state_of(Watched(seen, 0.0), receipt) == (state, is_pending)


def test_content_that_changed_while_nobody_wrote_is_rot_until_the_file_or_the_receipt_is_another() -> None:
    receipt = receipt_of(SEEN)
    assert is_rot(receipt, SEEN, "f" * 64)
    assert not is_rot(receipt, SEEN, receipt.sha256)
    assert not is_rot(None, SEEN, "f" * 64)
    assert not is_rot(receipt, EDITED, "f" * 64)
    assert not is_rot(receipt, COPIED, "f" * 64)
    old = replace(receipt, state="disputed", found="f" * 64).to_record()
    del old["found"]
    assert Receipt.from_record(old).found == "", "one from before there was the field"


def source(path: str, state: str = "staged", sha256: str | None = None, key: str | None = None) -> Source:
    return replace(Source("d", path, 60, sha256 or path * 64), state=state, key=key)


def listing(*paths: str, complete: bool = False) -> Listing:
    return Listing("d", tuple((path, 60) for path in paths), complete, "")


def test_the_tokenizer_waits_for_the_first_files_of_the_listing_and_takes_no_later_ones_instead() -> None:
    sources = {"b": source("b"), "c": source("c"), "d": source("d")}
    waits = choose_training_set(listing("a", "b", "c", "d"), sources, 100)
    assert (waits.wanted, waits.ready) == ({"a"}, False)
    ready = choose_training_set(listing("a", "b", "c", "d"), {**sources, "a": source("a")}, 100)
    assert [path for path, _ in ready.files] == ["a", "b"]
    assert ready.ready


def test_a_quarantined_file_gives_its_place_to_the_next_and_a_twin_counts_once() -> None:
    sources = {
        "a": source("a", "quarantined"),
        "b": source("b"),
        "c": source("c", "seen", "b" * 64),
        "d": source("d"),
    }
    chosen = choose_training_set(listing("a", "b", "c", "d"), sources, 100)
    assert [path for path, _ in chosen.files] == ["b", "d"]
    assert chosen.ready


def test_fewer_bytes_than_asked_are_enough_only_when_the_listing_is_complete() -> None:
    sources = {"a": source("a")}
    assert not choose_training_set(listing("a"), sources, 100).ready
    assert choose_training_set(listing("a", complete=True), sources, 100).ready
    assert not choose_training_set(None, sources, 100).ready


def ended(kind: str, code: int | None = None, signum: int | None = None, **more: object) -> WorkerExit:
    fields = {"result": None, "error": None, "max_rss_bytes": 0, **more}
    return WorkerExit(kind=kind, code=code, signal=signum, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("exit_", "kind"),
    [
        (ended("finished", 0, result={"status": "published"}), "done"),
        (ended("finished", 0, result={"status": "bad", "reason": "truncated"}), "bad"),
        (ended("finished", 0, result={"status": "changed"}), "changed"),
        (ended("finished", 0, result={"status": "mismatch"}), "changed"),
        (ended("killed", signum=signal.SIGSEGV), "died"),
        (ended("killed", signum=signal.SIGABRT), "died"),
        (ended("killed", signum=signal.SIGKILL), "killed"),
        (ended("killed", signum=signal.SIGTERM), "killed"),
        (ended("silent", signum=signal.SIGABRT), "silent"),
        (ended("stalled", signum=signal.SIGKILL), "stalled"),
        (ended("over_memory", signum=signal.SIGKILL), "over_memory"),
        (ended("finished", 0, result={"status": "recycled"}), "recycled"),
        (
            ended("failed", 74, error={"type": "StorageError", "message": "", "errno": errno.ENOSPC}),
            "disk_full",
        ),
        (ended("failed", 74, error={"type": "StorageError", "message": "", "errno": errno.EIO}), "storage"),
        (ended("failed", 75, error={"type": "LockHeld", "message": ""}), "again"),
        (ended("failed", 70, error={"type": "MemoryError", "message": ""}), "out_of_memory"),
        (ended("failed", 70, error={"type": "ArrowMemoryError", "message": ""}), "out_of_memory"),
        (
            ended("failed", 74, error={"type": "OSError", "errno": errno.ENOMEM, "message": ""}),
            "out_of_memory",
        ),
        (ended("failed", 70, error={"type": "ModuleNotFoundError", "message": ""}), "again"),
        (ended("failed", 1), "again"),
        (ended("failed", 70, error={"type": "ZeroDivisionError", "message": ""}), "died"),
    ],
)
def test_only_what_a_worker_earned_by_the_file_counts_against_the_file(exit_: WorkerExit, kind: str) -> None:
    assert judge(exit_, Evidence()).kind == kind


def test_two_deaths_at_one_row_group_convict_and_two_at_different_ones_do_not() -> None:
    assert convicted((3, 5)) is None
    assert convicted((3, 5, 5)) == 5


def test_what_a_record_claims_and_hot_lacks_is_started_anew() -> None:
    hot = HotLayout(Path("/hot"))
    sources = {
        "a": source("a", "proven", key="a" * 64),
        "b": source("b", "staged"),
        "c": source("c", "building", key="c" * 64),
        "d": source("d", "released", key="d" * 64),
    }
    seen = ScanResult(("d" * 16,), parquet=(parquet_name(sources["c"]),), building=("c" * 16,))
    assert [path for path, _ in reconcile_hot(hot, seen, sources).renew] == ["a", "b"]


def test_leftovers_are_removed_and_what_is_not_ours_is_left_alone() -> None:
    hot = HotLayout(Path("/hot"))
    done = source("a", "released", key="a" * 64)
    begun = source("b", "building", key="b" * 64)
    seen = ScanResult(
        parquet=(parquet_name(done), parquet_name(begun), "somebody-elses.parquet"),
        building=("a" * 16, "a" * 16 + ".lock", "b" * 16, "b" * 16 + ".lock"),
        published=("a" * 16,),
        temporaries=("/hot/parquet/.tmp-x",),
    )
    found = reconcile_hot(hot, seen, {"a": done, "b": begun})
    assert found.renew == ()
    assert found.parquet == (("a", f"/hot/parquet/{parquet_name(done)}"),)
    assert set(found.remove) == {
        "/hot/parquet/.tmp-x",
        f"/hot/.building/{'a' * 16}",
        f"/hot/.building/{'a' * 16}.lock",
    }


def test_a_source_takes_only_the_steps_that_exist() -> None:
    assert source("a", "staged").moved("building", key="k").state == "building"
    with pytest.raises(DataError, match="no way leads from seen to building"):
        source("a", "seen").moved("building")
    renewed = replace(source("a", "building", key="k"), attempts=3, deaths=(1,)).renewed(size=5, sha256="b")
    assert (renewed.state, renewed.key, renewed.attempts, renewed.deaths) == ("seen", None, 0, ())
