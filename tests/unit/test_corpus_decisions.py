"""Settling, choosing the tokenizer's files, judging workers, reconciling with hot: pure decisions."""

from __future__ import annotations

import errno
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.corpus.records.listing import Listing
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import Source
from stoker.corpus.records.tokenizer_files import choose
from stoker.corpus.schedule.outcome import convicted, judge
from stoker.corpus.source.arrivals import Desk, Unproven, Watched, is_rot, vanished, watch
from stoker.corpus.source.folder import FileSeen
from stoker.corpus.staging.disk_contents import HotSeen
from stoker.corpus.staging.reconcile import parquet_name, reconcile_hot
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


def desk(*files: FileSeen, since: float = 0.0, **changes: object) -> Desk:
    return replace(
        Desk(watch({}, new(*files, since=since), since), {}, (), {}, slots=2, settle_s=10.0), **changes
    )


def test_a_file_settles_by_our_own_clock_and_any_change_starts_it_anew() -> None:
    before = watch({}, new(file("a")), 0.0)
    assert watch(before, new(file("a")), 9.0)["a"].since == 0.0
    for changed in (file("a", size=11), file("a", mtime_ns=2), FileSeen("a", 10, 1, 8)):
        assert watch(before, new(changed, since=-50.0), 9.0)["a"].since == 9.0
    assert (
        watch(before, new(FileSeen("a", 10, 1, 7, ctime_ns=5), since=9.0), 9.0)["a"].since == 0.0
    )  # linked to
    assert desk(file("a")).next_to_hash(9.9) == []
    assert desk(file("a")).next_to_hash(10.0) == [file("a")]


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
    assert replace(desk(), watched=watched).next_to_hash(500.0 + settles_in_s + 0.1) == [copied]
    assert not settles_in_s or not replace(desk(), watched=watched).next_to_hash(500.0 + settles_in_s - 0.1)


def test_files_at_first_sight_are_told_apart_by_few_times() -> None:
    ages = (each * 10**7 for each in range(2000))  # in hundredths of a second, settled or not
    first = [
        Watched.first(replace(file("a"), ctime_ns=10**18 - age), now=500.0, wall_ns=10**18, settle_s=10.0)
        for age in ages
    ]
    assert len({each.since for each in first}) <= 102


def test_a_file_that_grows_with_every_look_never_settles_and_then_does() -> None:
    watched: dict[str, Watched] = {}
    for look in range(20):
        watched = watch(watched, new(file("a", size=look)), look * 4.0)
        assert replace(desk(), watched=watched).next_to_hash(look * 4.0 + 3.9) == []
    assert Unproven(watched.items()).next_settling(80.0, 10.0) == 86.0
    assert replace(desk(), watched=watched).next_to_hash(86.0) == [file("a", size=19)]


def test_a_receipt_of_a_file_elsewhere_does_not_vouch_and_an_unlisted_file_is_not_hashed() -> None:
    files = [file("a"), file("b")]
    receipts = {each.path: receipt_of(each) for each in files}
    assert desk(*files, receipts=receipts, root="/f").vouched(files[0])
    assert list(desk(*files, receipts=receipts, root="/elsewhere").waiting(10.0)) == files
    assert desk(*files, only={"b"}).next_to_hash(10.0) == files[1:]
    assert desk(*files, only={"c"}).next_to_hash(10.0) == []


def test_only_what_no_receipt_vouches_for_is_hashed_within_the_slots() -> None:
    files = [file(name) for name in "abcd"]
    receipts = {"a": receipt_of(files[0]), "b": receipt_of(files[1], state="disputed")}
    now = desk(*files, receipts=receipts, hashing={"c"})
    assert now.next_to_hash(10.0) == [files[1]]
    assert replace(now, not_before={"b": 11.0}).next_to_hash(10.0) == [files[3]]
    assert list(replace(now, hashing=()).waiting(10.0)) == files[1:]


def test_content_that_changed_while_nobody_wrote_is_rot_until_the_file_or_the_receipt_is_another() -> None:
    seen = file("a")
    receipt = receipt_of(seen)
    assert is_rot(receipt, seen, "f" * 64)
    assert not is_rot(receipt, seen, receipt.sha256)
    assert not is_rot(None, seen, "f" * 64)
    assert not is_rot(receipt, replace(seen, mtime_ns=seen.mtime_ns + 1), "f" * 64), "an edit"
    assert not is_rot(receipt, replace(seen, inode=seen.inode + 1), "f" * 64), "another copy"

    rotten = replace(receipt, state="disputed", found="f" * 64)
    assert desk(seen, receipts={"a": rotten}).next_to_hash(10.0) == []
    assert desk(seen, receipts={"a": rotten}).complete(whole=True), "nobody waits for it"
    assert desk(seen, receipts={"a": replace(rotten, found="")}).next_to_hash(10.0) == [seen]
    old = rotten.to_record()
    del old["found"]
    assert Receipt.from_record(old) == replace(rotten, found=""), "one from before there was the field"
    later = replace(seen, mtime_ns=seen.mtime_ns + 1)
    assert desk(later, receipts={"a": rotten}).next_to_hash(10.0) == [later]


def test_the_unproven_are_counted_by_state_while_they_come_and_go() -> None:
    watched = watch({}, [*new(*map(file, "abc")), *new(*map(file, "de"), since=5.0)], 5.0)
    unproven = Unproven(watched.items())
    states = ("settling", "waiting", "hashing", "verified", "disputed")

    def counts(now: float, hashing: str = "", disputed: str = "") -> tuple[int, ...]:
        found = unproven.counts(now, 10.0, hashing, disputed)
        return tuple(found[state] for state in states)

    assert counts(9.9) == (5, 0, 0, 0, 0)
    assert counts(10.0) == (2, 3, 0, 0, 0)
    assert counts(10.0, hashing="a/", disputed="bdz") == (1, 1, 1, 0, 2)
    assert counts(10.0, hashing="ab", disputed="b") == (2, 1, 2, 0, 0)
    assert [unproven.next_settling(now, 10.0) for now in (9.0, 10.0, 15.0)] == [10.0, 15.0, None]
    for path in "adx":
        unproven.drop(path)
    assert counts(15.0) == (0, 3, 0, 0, 0)
    assert unproven.bytes == 30
    unproven.drop("e")
    assert unproven.next_settling(10.0, 10.0) is None


def test_the_listing_is_complete_when_the_look_was_whole_and_each_file_is_vouched_for() -> None:
    files = [file("b"), file("a", 20)]
    receipts = {each.path: receipt_of(each) for each in files}
    assert list(desk(*files).watched) == ["a", "b"]
    assert desk(*files, receipts=receipts).complete(whole=True)
    assert not desk(*files, receipts=receipts).complete(whole=False)
    assert not desk(*files, file("c"), receipts=receipts).complete(whole=True)
    assert not desk().complete(whole=True)
    assert vanished(watch({}, new(files[0]), 0.0), receipts) == ["a"]


def source(path: str, state: str = "staged", sha256: str | None = None, key: str | None = None) -> Source:
    return replace(Source("d", path, 60, sha256 or path * 64), state=state, key=key)


def listing(*paths: str, complete: bool = False) -> Listing:
    return Listing("d", tuple((path, 60) for path in paths), complete, "")


def test_the_tokenizer_waits_for_the_first_files_of_the_listing_and_takes_no_later_ones_instead() -> None:
    sources = {"b": source("b"), "c": source("c"), "d": source("d")}
    waits = choose(listing("a", "b", "c", "d"), sources, 100)
    assert (waits.wanted, waits.ready) == ({"a"}, False)
    ready = choose(listing("a", "b", "c", "d"), {**sources, "a": source("a")}, 100)
    assert [path for path, _ in ready.files] == ["a", "b"]
    assert ready.ready


def test_a_quarantined_file_gives_its_place_to_the_next_and_a_twin_counts_once() -> None:
    sources = {
        "a": source("a", "quarantined"),
        "b": source("b"),
        "c": source("c", "seen", "b" * 64),
        "d": source("d"),
    }
    chosen = choose(listing("a", "b", "c", "d"), sources, 100)
    assert [path for path, _ in chosen.files] == ["b", "d"]
    assert chosen.ready


def test_fewer_bytes_than_asked_are_enough_only_when_the_listing_is_complete() -> None:
    sources = {"a": source("a")}
    assert not choose(listing("a"), sources, 100).ready
    assert choose(listing("a", complete=True), sources, 100).ready
    assert not choose(None, sources, 100).ready


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
        (ended("timed_out", signum=signal.SIGKILL, cause="silent"), "silent"),
        (ended("timed_out", signum=signal.SIGKILL, cause="stalled"), "stalled"),
        (ended("over_memory", signum=signal.SIGKILL, cause="over_memory"), "over_memory"),
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
    assert judge(exit_).kind == kind


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
    seen = HotSeen((parquet_name(sources["c"]),), ("c" * 16,), ("d" * 16,), ())
    assert [path for path, _ in reconcile_hot(hot, seen, sources).renew] == ["a", "b"]


def test_leftovers_are_removed_and_what_is_not_ours_is_left_alone() -> None:
    hot = HotLayout(Path("/hot"))
    done = source("a", "released", key="a" * 64)
    begun = source("b", "building", key="b" * 64)
    seen = HotSeen(
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
