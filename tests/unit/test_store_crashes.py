"""Every durable path of the store goes through the crash checker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crash import Crash, CrashFound, acknowledge, check_crashes
from stoker.store import files, requests
from stoker.store.files import (
    make_dir,
    move_durably,
    publish_dir,
    remove_tree,
    sweep_temporaries,
    unlink_durably,
)
from stoker.store.layout import STAGE_SHARD, StateLayout
from stoker.store.log import ChainedLog, read_log
from stoker.store.record import RecordDamaged, read_or_set_aside, read_record, write_record
from stoker.store.requests import file_request, finish_request, pending_requests, read_outcome


def nothing(root: Path) -> None:
    pass


def no_temporaries(directory: Path) -> None:
    assert not [name for name in os.listdir(directory) if name.startswith(".tmp-")]


class TestRecords:
    @staticmethod
    def prepare(root: Path) -> None:
        write_record(root / "a.json", {"v": 1, "n": 0})

    @staticmethod
    def write(root: Path) -> None:
        for number in (1, 2):
            write_record(root / "a.json", {"v": 1, "n": number})
            acknowledge(number)

    @staticmethod
    def invariant(root: Path, crash: Crash) -> None:
        number = read_record(root / "a.json")["n"]
        assert number in range(max(crash.acknowledged, default=0), 3)
        no_temporaries(root)

    def test_a_record_is_the_old_one_or_the_new_one(self) -> None:
        report = check_crashes(self.write, sweep_temporaries, self.invariant, prepare=self.prepare)
        assert report.exhaustive

    @pytest.mark.parametrize("forgotten", ["fsync of the file", "fsync of the directory"])
    def test_a_record_written_without_one_of_its_fsyncs_is_found(
        self, forgotten: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original: Callable[..., None] = files._write_new
        if forgotten == "fsync of the file":
            monkeypatch.setattr(files, "_write_new", lambda *given: original(*given[:2], False, given[3]))
        else:
            monkeypatch.setattr(files, "_fsync_path", lambda path: None)
        with pytest.raises(CrashFound):
            check_crashes(self.write, sweep_temporaries, self.invariant, prepare=self.prepare)

    def test_setting_a_damaged_record_aside_loses_neither_it_nor_its_reason(self) -> None:
        def prepare(root: Path) -> None:
            make_dir(root / "quarantine")
            (root / "a.json").write_bytes(b"{damaged")

        def recover(root: Path) -> None:
            assert read_or_set_aside(root / "a.json", root / "quarantine") is None

        def kept_once_with_its_reason(root: Path, crash: Crash) -> None:
            assert not (root / "a.json").exists()
            (kept,) = (root / "quarantine").glob("*/a.json")
            assert kept.read_bytes() == b"{damaged"
            assert read_record(kept.parent / "reason.json")["reason"] == "damaged"

        check_crashes(recover, recover, kept_once_with_its_reason, prepare=prepare)


class TestLogs:
    @staticmethod
    def bodies(root: Path) -> list[int]:
        return [entry["n"] for entry in read_log(root / "log").entries]

    @staticmethod
    def prepare(root: Path) -> None:
        ChainedLog(root / "log").append({"v": 1, "n": 0})

    @staticmethod
    def tear(root: Path) -> None:
        TestLogs.prepare(root)
        with (root / "log").open("ab") as file:
            file.write(b'{"n":7,"prev":"')

    @staticmethod
    def write(root: Path) -> None:
        log = ChainedLog(root / "log")
        for number in (1, 2):
            log.append({"v": 1, "n": number})
            acknowledge(number)
        log.close()

    @staticmethod
    def invariant(root: Path, crash: Crash) -> None:
        numbers = TestLogs.bodies(root)
        assert numbers == list(range(len(numbers)))
        assert set(crash.acknowledged) <= set(numbers)
        assert read_log(root / "log").damage == ()

    @staticmethod
    def goes_on(root: Path) -> None:
        """What a restart does: append the next number, and that one must not be lost to a torn line."""
        log = ChainedLog(root / "log")
        number = 0 if log.last is None else log.last["n"] + 1
        log.append({"v": 1, "n": number})
        log.close()
        assert TestLogs.bodies(root)[-1] == number

    @pytest.mark.parametrize("before", ["nothing", "prepare", "tear"])
    def test_acknowledged_entries_stay_and_the_next_is_never_lost(self, before: str) -> None:
        prepare = {"nothing": nothing, "prepare": self.prepare, "tear": self.tear}[before]

        def write(root: Path) -> None:
            if before == "nothing":
                self.prepare(root)
                acknowledge(0)
            self.write(root)

        check_crashes(write, self.goes_on, self.invariant, prepare=prepare)

    def test_an_append_without_its_sync_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        append = ChainedLog.append
        monkeypatch.setattr(ChainedLog, "append", lambda log, body: append(log, body, durable=False))
        with pytest.raises(CrashFound):
            check_crashes(self.write, self.goes_on, self.invariant, prepare=self.prepare)

    def test_rotation_keeps_the_chain_whole(self) -> None:
        def write(root: Path) -> None:
            log = ChainedLog(root / "log", rotate_bytes=600)
            for number in range(8):
                log.append({"v": 1, "n": number})
            log.close()

        def recover(root: Path) -> None:
            ChainedLog(root / "log", rotate_bytes=600).close()

        def consecutive(root: Path, crash: Crash) -> None:
            reading = read_log(root / "log", rotated=True)
            numbers = [entry["n"] for entry in reading.entries]
            assert numbers == list(range(min(numbers, default=0), max(numbers, default=-1) + 1))
            assert reading.damage == ()
            assert not crash.complete or numbers[-1] == 7

        check_crashes(write, recover, consecutive, max_states=1500)


class TestRequests:
    @staticmethod
    def prepare(root: Path) -> None:
        StateLayout(root).create()

    def test_a_filed_request_is_there_whole_or_not_at_all(self) -> None:
        def write(root: Path) -> None:
            acknowledge(file_request(StateLayout(root), STAGE_SHARD, "verify", {"deep": True}))

        def whole(root: Path, crash: Crash) -> None:
            found = pending_requests(StateLayout(root), STAGE_SHARD)
            assert {request.id for request in found} >= set(crash.acknowledged)
            assert all(request.args == {"deep": True} for request in found)
            assert not os.listdir(StateLayout(root).quarantine)

        check_crashes(write, nothing, whole, prepare=self.prepare)

    def test_a_request_is_never_lost_and_never_done_again_once_its_outcome_stands(self) -> None:
        def prepare(root: Path) -> None:
            self.prepare(root)
            file_request(StateLayout(root), STAGE_SHARD, "verify", {})

        def act(root: Path) -> None:
            layout = StateLayout(root)
            for request in pending_requests(layout, STAGE_SHARD):
                assert read_outcome(layout, request.id) is None
                finish_request(layout, STAGE_SHARD, request, {"done": True})
                acknowledge(request.id)

        def done_once(root: Path, crash: Crash) -> None:
            layout = StateLayout(root)
            assert pending_requests(layout, STAGE_SHARD) == []
            assert len(list(layout.requests_done.glob("*.json"))) == 1

        check_crashes(act, act, done_once, prepare=prepare)

    def test_a_finished_request_does_not_come_back_even_when_its_outcome_was_pruned(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(requests, "KEPT_DONE", 1)

        def prepare(root: Path) -> None:
            self.prepare(root)
            for _ in range(2):
                file_request(StateLayout(root), STAGE_SHARD, "verify", {})

        def finish_one(root: Path) -> None:
            layout = StateLayout(root)
            request = pending_requests(layout, STAGE_SHARD)[0]
            finish_request(layout, STAGE_SHARD, request, {})
            acknowledge(request.id)

        def write(root: Path) -> None:
            finish_one(root)
            finish_one(root)

        def not_again(root: Path, crash: Crash) -> None:
            pending = {request.id for request in pending_requests(StateLayout(root), STAGE_SHARD)}
            assert not pending & set(crash.acknowledged)

        check_crashes(write, nothing, not_again, prepare=prepare)


class TestDirectories:
    @staticmethod
    def build(root: Path) -> None:
        """Write a tree without any sync: publishing makes it durable."""
        make_dir(root / ".building")
        make_dir(root / "sets")
        os.mkdir(root / ".building" / "set")
        os.mkdir(root / ".building" / "set" / "sub")
        for name in ("one", "sub/two"):
            descriptor = os.open(root / ".building" / "set" / name, os.O_WRONLY | os.O_CREAT, 0o640)
            os.write(descriptor, name.encode())
            os.close(descriptor)

    @staticmethod
    def whole_or_absent(root: Path, crash: Crash) -> None:
        published = root / "sets" / "set"
        assert published.exists() or not crash.complete
        if published.exists():
            assert (published / "one").read_bytes() == b"one"
            assert (published / "sub" / "two").read_bytes() == b"sub/two"

    def publish(self, root: Path) -> None:
        self.build(root)
        publish_dir(root / ".building" / "set", root / "sets" / "set")

    def test_a_published_directory_is_whole_or_absent(self) -> None:
        check_crashes(self.publish, nothing, self.whole_or_absent, max_states=2500)

    def test_publishing_without_syncing_the_tree_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "fsync_tree", lambda directory: None)
        with pytest.raises(CrashFound):
            check_crashes(self.publish, nothing, self.whole_or_absent, max_states=500)

    def test_a_moved_file_is_in_exactly_one_place(self) -> None:
        def prepare(root: Path) -> None:
            make_dir(root / "here")
            make_dir(root / "there")
            write_record(root / "here" / "a", {"v": 1})

        def in_one_place(root: Path, crash: Crash) -> None:
            places = [(root / place / "a").exists() for place in ("here", "there")]
            assert sum(places) == 1
            assert not crash.complete or places[1]

        check_crashes(
            lambda root: move_durably(root / "here" / "a", root / "there" / "a"),
            nothing,
            in_one_place,
            prepare=prepare,
        )

    def test_what_is_unlinked_or_removed_stays_gone(self) -> None:
        def prepare(root: Path) -> None:
            make_dir(root / "tree" / "below")
            write_record(root / "tree" / "below" / "a", {"v": 1})
            write_record(root / "b", {"v": 1})

        def write(root: Path) -> None:
            unlink_durably(root / "b")
            acknowledge("b")
            remove_tree(root / "tree")

        def gone(root: Path, crash: Crash) -> None:
            assert not (crash.acknowledged and (root / "b").exists())
            assert not (crash.complete and (root / "tree").exists())

        check_crashes(write, nothing, gone, prepare=prepare)

    def test_a_state_directory_once_made_keeps_what_is_put_in_it(self) -> None:
        def write(root: Path) -> None:
            layout = StateLayout(root / "var" / "state")
            make_dir(layout.sources)
            write_record(layout.source("set", "a.parquet"), {"v": 1})

        def kept(root: Path, crash: Crash) -> None:
            path = StateLayout(root / "var" / "state").source("set", "a.parquet")
            if crash.complete:
                assert read_record(path) == {"v": 1}

        check_crashes(write, nothing, kept)


def test_a_record_that_is_only_zeros_or_half_there_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_record(path, {"v": 1, "n": 3})
    whole = path.read_bytes()
    for content in (b"", bytes(len(whole)), whole[: len(whole) // 2], whole.replace(b"3", b"4", 1)):
        path.write_bytes(content)
        with pytest.raises(RecordDamaged):
            read_record(path)
