"""Records, logs, requests and the layout of the state directory."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.store import requests as requests_module
from stoker.store.errors import StorageError, UnavailableError
from stoker.store.files import sweep_temporaries
from stoker.store.layout import DAEMONS, STAGE_SHARD, HotLayout, RuntimeLayout, StateLayout
from stoker.store.log import GENESIS, ChainedLog, LogScan, read_log
from stoker.store.record import RecordDamaged, read_or_set_aside, read_record, write_record
from stoker.store.requests import (
    file_request,
    finish_request,
    pending_requests,
    read_outcome,
)
from support.litter import litter_requests

VALUES = (
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.lists(st.booleans())
)


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    made = StateLayout(tmp_path / "state")
    made.create()
    return made


class TestRecords:
    def test_what_is_written_is_read_back(self, tmp_path: Path) -> None:
        body = {"v": 1, "text": "ü☃", "n": 3, "x": 0.1, "none": None, "nested": {"b": [1], "a": {}}}
        write_record(tmp_path / "a.json", body)
        assert read_record(tmp_path / "a.json") == body

    @settings(max_examples=40, deadline=None)
    @given(
        body=st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=5), VALUES, max_size=5
        ),
        counts=st.dictionaries(st.integers(0, 30), VALUES, max_size=5),
    )
    def test_any_body_that_json_can_hold_sums_again(
        self, body: dict[str, object], counts: dict[int, object]
    ) -> None:
        whole = {**body, "counts": counts, "v": 1}
        with tempfile.TemporaryDirectory() as directory:
            write_record(Path(directory) / "a.json", whole)
            found = read_record(Path(directory) / "a.json")
        whole.pop("sum", None)
        assert found == json.loads(json.dumps(whole))

    def test_the_sum_is_over_the_canonical_form_without_it(self, tmp_path: Path) -> None:
        write_record(tmp_path / "a.json", {"v": 1, "b": 2})
        whole = json.loads((tmp_path / "a.json").read_bytes())
        assert len(whole["sum"]) == 16
        (tmp_path / "a.json").write_text(json.dumps(whole, indent=4))  # same content, laid out by hand
        assert read_record(tmp_path / "a.json") == {"v": 1, "b": 2}

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\0" * 50,
            b"{",
            b"[1]",
            b'{"n":1}',
            b'{"v":1}',
            b'{"v":NaN,"sum":""}',
            b"\xff\xfe",
            b'{"v":"\\ud800"}',
        ],
    )
    def test_what_is_no_record_is_damaged(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a.json").write_bytes(content)
        with pytest.raises(RecordDamaged, match=r"a\.json"):
            read_record(tmp_path / "a.json")

    def test_every_flipped_bit_is_found(self, tmp_path: Path) -> None:
        write_record(tmp_path / "a.json", {"v": 1, "state": "proven", "size": 1234})
        whole = (tmp_path / "a.json").read_bytes()
        for place in range(len(whole) - 1):
            for bit in range(8):
                flipped = bytearray(whole)
                flipped[place] ^= 1 << bit
                (tmp_path / "a.json").write_bytes(flipped)
                with pytest.raises(RecordDamaged):
                    read_record(tmp_path / "a.json")

    def test_a_record_without_a_version_is_not_written(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="version"):
            write_record(tmp_path / "a.json", {"n": 1})

    def test_a_damaged_record_is_set_aside_with_its_reason(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_bytes(b"{")
        assert read_or_set_aside(tmp_path / "a.json", tmp_path / "quarantine") is None
        (place,) = (tmp_path / "quarantine").iterdir()
        assert place.name.startswith("record-a.json-2")
        assert (place / "a.json").read_bytes() == b"{"
        assert read_record(place / "reason.json")["kind"] == "record"
        assert not (tmp_path / "a.json").exists()
        assert read_or_set_aside(tmp_path / "a.json", tmp_path / "quarantine") is None

    def test_a_record_that_cannot_be_read_is_not_convicted(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").mkdir()
        with pytest.raises(StorageError):
            read_or_set_aside(tmp_path / "a.json", tmp_path / "quarantine")
        assert (tmp_path / "a.json").exists()


class TestLogs:
    def write(self, path: Path, count: int = 4) -> list[str]:
        log = ChainedLog(path)
        hashes = [log.append({"v": 1, "n": number}) for number in range(count)]
        log.close()
        return hashes

    def numbers(self, path: Path) -> list[int]:
        return [entry["n"] for entry in read_log(path).entries]

    def test_a_missing_log_is_empty(self, tmp_path: Path) -> None:
        reading = read_log(tmp_path / "log")
        assert (reading.entries, reading.head, reading.damage) == ((), GENESIS, ())

    def test_entries_are_chained_by_the_hash_of_the_line_before(self, tmp_path: Path) -> None:
        hashes = self.write(tmp_path / "log")
        reading = read_log(tmp_path / "log")
        assert list(reading.hashes) == hashes
        assert [entry["prev"] for entry in reading.entries] == [GENESIS, *hashes[:-1]]
        log = ChainedLog(tmp_path / "log")
        assert log.head == reading.head == hashes[-1]
        assert log.last == reading.entries[-1]

    def test_at_whichever_byte_the_last_line_is_torn_the_next_entry_is_not_lost(self, tmp_path: Path) -> None:
        self.write(tmp_path / "log", 3)
        whole = (tmp_path / "log").read_bytes()
        last = whole.rstrip(b"\n").rindex(b"\n") + 1
        for cut in range(last, len(whole) + 1):
            (tmp_path / "log").write_bytes(whole[:cut])
            log = ChainedLog(tmp_path / "log")
            log.append({"v": 1, "n": 99})
            log.append({"v": 1, "n": 100})
            reading = read_log(tmp_path / "log")
            kept = [0, 1, 2] if cut >= len(whole) - 1 else [0, 1]
            assert self.numbers(tmp_path / "log") == [*kept, 99, 100]
            assert reading.damage == ()

    @pytest.mark.parametrize("size", [0, 65_000, 65_536, 140_000])
    def test_a_line_of_any_length_is_read_whole(self, tmp_path: Path, size: int) -> None:
        log = ChainedLog(tmp_path / "log")
        for number in range(3):
            log.append({"v": 1, "n": number, "text": "x" * size})
        scan = LogScan(tmp_path / "log")
        assert [(entry["n"], len(entry["text"]), scan.line) for entry, _ in scan] == [
            (0, size, 1),
            (1, size, 2),
            (2, size, 3),
        ]
        assert (scan.head, scan.damage) == (log.head, ())

    def test_zeros_where_a_line_was_going_to_be_are_a_torn_line(self, tmp_path: Path) -> None:
        self.write(tmp_path / "log", 2)
        with (tmp_path / "log").open("ab") as file:
            file.write(bytes(80))
        assert read_log(tmp_path / "log").damage == ()
        ChainedLog(tmp_path / "log").append({"v": 1, "n": 2})
        assert self.numbers(tmp_path / "log") == [0, 1, 2]
        assert read_log(tmp_path / "log").damage == ()

    def test_a_last_line_that_does_not_parse_is_damage_once_it_is_whole(self, tmp_path: Path) -> None:
        self.write(tmp_path / "log", 2)
        with (tmp_path / "log").open("ab") as file:
            file.write(b"#garbage\n")
        for reading in (read_log(tmp_path / "log"), read_log((tmp_path / "log").read_bytes())):
            assert reading.damage == ("line 3 does not parse, and is whole: it was changed or overwritten",)
        assert ChainedLog(tmp_path / "log").damage == reading.damage

    def test_a_last_line_that_a_power_cut_left_zeros_in_is_torn(self, tmp_path: Path) -> None:
        self.write(tmp_path / "log", 2)
        with (tmp_path / "log").open("ab") as file:
            file.write(bytes(64) + b'"prev":"00"}\n')
        reading = read_log(tmp_path / "log")
        assert reading.damage == ()
        log = ChainedLog(tmp_path / "log")
        log.append({"n": 2})
        assert (log.damage, len(read_log(tmp_path / "log").entries)) == ((), 3)

    def test_a_changed_line_in_the_middle_is_damage_and_named(self, tmp_path: Path) -> None:
        self.write(tmp_path / "log")
        lines = (tmp_path / "log").read_bytes().splitlines(keepends=True)
        changes = {
            "another value": [lines[0], lines[1].replace(b'"n":1', b'"n":7'), *lines[2:]],
            "no JSON": [lines[0], b"#" + lines[1], *lines[2:]],
            "a line missing": [lines[0], *lines[2:]],
            "two swapped": [lines[0], lines[2], lines[1], lines[3]],
            "the first missing": lines[1:],
        }
        for name, changed in changes.items():
            (tmp_path / "log").write_bytes(b"".join(changed))
            assert read_log(tmp_path / "log").damage, name
            assert "line " in read_log(tmp_path / "log").damage[0]
            assert ChainedLog(tmp_path / "log").damage, name

    def test_a_failed_append_leaves_the_log_as_it_was_and_the_next_one_works(self, tmp_path: Path) -> None:
        hashes = self.write(tmp_path / "log")
        log = ChainedLog(tmp_path / "log")
        size = (tmp_path / "log").stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
        try:
            with pytest.raises(StorageError, match="append"):
                log.append({"v": 1, "n": 4})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (tmp_path / "log").stat().st_size == size
        assert log.head == hashes[-1]
        log.append({"v": 1, "n": 5})
        assert self.numbers(tmp_path / "log") == [0, 1, 2, 3, 5]

    def test_a_rotating_log_keeps_its_budget_its_newest_entries_and_its_chain(self, tmp_path: Path) -> None:
        log = ChainedLog(tmp_path / "log", rotate_bytes=4000)
        for number in range(200):
            log.append({"v": 1, "n": number}, durable=False)
            if number == 120:
                log.close()
                log = ChainedLog(tmp_path / "log", rotate_bytes=4000)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4000 + 200
        reading = read_log(tmp_path / "log", rotated=True)
        numbers = [entry["n"] for entry in reading.entries]
        assert numbers == list(range(numbers[0], 200))
        assert len(numbers) > 15
        assert reading.damage == ()

    def test_a_process_killed_while_appending_loses_nothing_it_acknowledged(self, tmp_path: Path) -> None:
        script = (
            "import sys; from pathlib import Path; from stoker.store.log import ChainedLog\n"
            "log = ChainedLog(Path(sys.argv[1]))\n"
            "n = -1 if log.last is None else log.last['n']\n"
            "while True:\n"
            "    n += 1; log.append({'v': 1, 'n': n}); print(n, flush=True)\n"
        )
        acknowledged = -1
        for _ in range(3):
            child = subprocess.Popen(
                [sys.executable, "-c", script, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
            )
            assert child.stdout is not None
            with child, child.stdout as lines:
                for _ in range(20):
                    acknowledged = int(lines.readline())
                child.kill()
            numbers = self.numbers(tmp_path / "log")
            assert numbers == list(range(len(numbers)))
            assert numbers[-1] >= acknowledged


class TestRequests:
    def test_a_request_is_filed_taken_and_finished(self, layout: StateLayout) -> None:
        first = file_request(layout, STAGE_SHARD, "verify", {"set": "a"}, {"timeline": 2})
        second = file_request(layout, STAGE_SHARD, "scrub", {})
        found = {request.id: request for request in pending_requests(layout, STAGE_SHARD)}
        assert set(found) == {first, second}
        assert (found[first].verb, found[first].args, found[first].condition) == (
            "verify",
            {"set": "a"},
            {"timeline": 2},
        )
        assert found[first].by == f"uid {os.getuid()}"
        finish_request(layout, STAGE_SHARD, found[first], {"verdict": "proven"})
        assert read_outcome(layout, first) == {"verdict": "proven"}
        assert read_outcome(layout, second) is None
        assert [request.id for request in pending_requests(layout, STAGE_SHARD)] == [second]

    def test_a_request_that_is_done_already_is_only_unlinked(self, layout: StateLayout) -> None:
        request_id = file_request(layout, STAGE_SHARD, "verify", {})
        path = layout.requests(STAGE_SHARD) / f"{request_id}.json"
        content = path.read_bytes()
        finish_request(layout, STAGE_SHARD, pending_requests(layout, STAGE_SHARD)[0], {})
        path.write_bytes(content)
        assert pending_requests(layout, STAGE_SHARD) == []
        assert not path.exists()

    def test_whatever_lies_around_is_set_aside_and_the_good_ones_still_come(
        self, layout: StateLayout
    ) -> None:
        good = file_request(layout, STAGE_SHARD, "verify", {})
        directory = layout.requests(STAGE_SHARD)
        os.mkfifo(directory / "fifo.json")
        (directory / "link.json").symlink_to("/etc/passwd")
        (directory / "directory.json").mkdir()
        (directory / "garbage.json").write_bytes(b"{")
        (directory / "large.json").write_bytes(b" " * 100_000)
        (directory / "other-name.json").write_bytes((directory / f"{good}.json").read_bytes())
        write_record(directory / "no-verb.json", {"v": 1, "id": "no-verb", "args": {}})
        (directory / ".tmp-in-work").write_bytes(b"{")
        assert [request.id for request in pending_requests(layout, STAGE_SHARD)] == [good]
        assert sorted(os.listdir(directory)) == sorted([".tmp-in-work", f"{good}.json"])
        assert len(list(layout.quarantine.iterdir())) == 7

    def test_no_name_and_no_body_keeps_the_good_ones_from_being_read(self, layout: StateLayout) -> None:
        good = file_request(layout, STAGE_SHARD, "verify", {})
        directory = layout.requests(STAGE_SHARD)
        litter_requests(directory)
        stuck: dict[str, StorageError] = {}
        assert [request.id for request in pending_requests(layout, STAGE_SHARD, stuck)] == [good]
        assert stuck == {}
        assert sweep_temporaries(directory) == 0
        left = [name for name in os.listdir(directory) if not name.startswith(".")]
        assert left == [f"{good}.json"]
        details = {read_record(file)["detail"] for file in layout.quarantine.glob("*/reason.json")}
        assert len(details) == 5
        assert any("not UTF-8" in detail for detail in details)

    @pytest.mark.root
    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a folder of another user")
    def test_what_cannot_be_moved_stays_and_nothing_is_written_of_it(self, tmp_path: Path) -> None:
        layout = of_4242(tmp_path)
        as_user(4242, layout.create)
        directory = layout.requests(STAGE_SHARD)
        as_user(4243, lambda: (directory / "0.json").mkdir(mode=0o700))
        as_user(4243, lambda: file_request(layout, STAGE_SHARD, "verify", {}))

        def look() -> None:
            stuck: dict[str, StorageError] = {}
            for _ in range(2):
                assert len(pending_requests(layout, STAGE_SHARD, stuck)) == 1
                assert list(stuck) == ["0.json"]
            assert list(layout.quarantine.iterdir()) == []

        as_user(4242, look)
        (directory / "0.json").rmdir()

        def look_again() -> None:
            stuck = {"0.json": StorageError("it was there")}
            assert len(pending_requests(layout, STAGE_SHARD, stuck)) == 1
            assert stuck == {}

        as_user(4242, look_again)

    def test_done_is_pruned_to_the_newest(self, layout: StateLayout, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(requests_module, "KEPT_DONE", 3)
        for _ in range(5):
            file_request(layout, STAGE_SHARD, "verify", {})
            finish_request(layout, STAGE_SHARD, pending_requests(layout, STAGE_SHARD)[0], {})
        assert len(os.listdir(layout.requests_done)) == 3

    @pytest.mark.root
    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to file a request as another user")
    def test_a_member_of_the_group_files_what_the_owner_can_read(self, tmp_path: Path) -> None:
        layout = of_4242(tmp_path)

        def finish() -> None:
            (request,) = pending_requests(layout, STAGE_SHARD)
            assert request.by == "uid 4243"
            finish_request(layout, STAGE_SHARD, request, {})
            assert pending_requests(layout, STAGE_SHARD) == []

        as_user(4242, layout.create)
        as_user(4243, lambda: file_request(layout, STAGE_SHARD, "verify", {}))
        as_user(4242, finish)


def of_4242(tmp_path: Path) -> StateLayout:
    """A state directory that user 4242 may make, and others of the group may reach."""
    for path in (tmp_path, *tmp_path.parents[:-2]):
        path.chmod(path.stat().st_mode | 0o011)
    (tmp_path / "owned").mkdir()
    os.chown(tmp_path / "owned", 4242, 4300)
    return StateLayout(tmp_path / "owned" / "state")


def as_user(uid: int, act: Callable[[], object]) -> None:
    """Run in a child, with a tight umask, as a user of group 4300 (4242 has it as its main group)."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.umask(0o077)
            os.setgroups([4300])
            os.setgid(4300 if uid == 4242 else uid)
            os.setuid(uid)
            act()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class TestLayout:
    def test_the_tree_is_made_with_its_modes_and_making_it_again_mends_the_shared_ones(
        self, tmp_path: Path
    ) -> None:
        before = os.umask(0o077)
        try:
            layout = StateLayout(tmp_path / "var" / "state")
            layout.create()
            layout.requests(STAGE_SHARD).chmod(0o750)
            layout.create()
        finally:
            os.umask(before)
        assert stat.S_IMODE(layout.state.stat().st_mode) == 0o750
        for directory in (layout.requests_done, *map(layout.requests, DAEMONS)):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o2770
        for path in (
            layout.lock(STAGE_SHARD),
            layout.receipt("d", "p"),
            layout.source("d", "p"),
            layout.dataset("d"),
        ):
            assert path.parent.is_dir()
        for path in (
            layout.listing("d"),
            layout.tokenizer("d", 1),
            layout.ledger(STAGE_SHARD),
            layout.quarantine / "x",
        ):
            assert path.parent.is_dir()
        assert layout.events(STAGE_SHARD).parent.is_dir()

    def test_a_run_has_its_own_tree(self, tmp_path: Path) -> None:
        run = StateLayout(tmp_path).run("main")
        run.create()
        assert run.metrics == tmp_path / "runs" / "main" / "log" / "metrics.jsonl"
        assert run.checkpoints.is_dir()
        assert run.abandoned.is_dir()

    def test_a_shard_set_is_named_by_the_first_16_hex_of_its_key(self) -> None:
        assert HotLayout(Path("/hot")).shard_set("set", "ab" * 32) == Path("/hot/shards/set") / ("ab" * 8)

    def test_the_runtime_directories_are_systemds_in_any_order(self, tmp_path: Path) -> None:
        for both in ("/run/stoker/a:/run/stoker/targets", "/run/stoker/targets:/run/stoker/a"):
            found = RuntimeLayout.of("a", tmp_path, {"RUNTIME_DIRECTORY": both})
            assert found == RuntimeLayout(Path("/run/stoker/a"), Path("/run/stoker/targets"))
        alone = RuntimeLayout.of("a", tmp_path, {"RUNTIME_DIRECTORY": "/run/a"})
        assert alone == RuntimeLayout.at(Path("/run/a"))

    def test_without_systemd_they_are_own_short_ones(self, tmp_path: Path) -> None:
        found = RuntimeLayout.of("no-such-instance", tmp_path, {})
        private = found.root
        try:
            assert found == RuntimeLayout.of("no-such-instance", tmp_path, {})
            assert stat.S_IMODE(private.stat().st_mode) == 0o700
            assert stat.S_IMODE(found.target_dir.stat().st_mode) == 0o755
            assert len(str(found.notify_socket("r" * 41))) < 100
            private.chmod(0o755)
            with pytest.raises(UnavailableError, match=str(private)):
                RuntimeLayout.of("no-such-instance", tmp_path, {})
            private.rmdir()
            private.symlink_to(tmp_path)
            with pytest.raises(UnavailableError):
                RuntimeLayout.of("no-such-instance", tmp_path, {})
            private.unlink()
        finally:
            if private.is_dir():
                private.rmdir()
