"""The data daemons on real files: from a folder of parquet to proven shard sets, whatever is wrong."""

from __future__ import annotations

import contextlib
import csv
import email
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from stoker.cli.main import exit_code
from stoker.corpus.records.sources import Source, write_source
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.kit.lock import Lock, read_holder
from stoker.kit.process import children_tree, signal_process
from stoker.kit.workers.parent import Worker
from stoker.shards.format.proof import prove_set
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD
from stoker.store.record import read_record
from stoker.store.requests import file_request, read_outcome
from support.downloads import stoker
from support.halting import halts_at
from support.litter import litter_requests
from support.parquet import flip_page, truncate, write_columns, write_fineweb
from support.pipelines import DataPipeline, Template, make_pipeline
from support.processes import ENDING_S, stop_worker, wait_gone
from support.waiting import LONG_S, wait_until

HEAVY = re.compile(r"torch|arrow|numpy|tokenizers|xxhash|safetensors")


def command_of(pid: int) -> str:
    """What a process runs; nothing where it has just ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    """Content and modification time of every file."""
    return {
        file.name: (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns)
        for file in sorted(folder.iterdir())
    }


def with_files(tmp_path: Path, count: int = 2, **changes: object) -> DataPipeline:
    """A pipeline with so many good files."""
    data = make_pipeline(tmp_path, **changes)
    for number in range(count):
        write_fineweb(data.source / f"{number:03d}.parquet", 150, seed=number)
    return data


class TestDownloadWatchdog:
    def test_it_gives_receipts_and_notices_what_changes_vanishes_or_is_disputed(self, tmp_path: Path) -> None:
        data = with_files(tmp_path, 3, stage__settle="1s")
        (data.source / "link.parquet").symlink_to(data.source / "000.parquet")
        (data.source / "coming.parquet.incomplete").write_bytes(b"half")
        daemon = data.start("download_watchdog")
        try:
            wait_until(lambda: len(data.receipts()) == 3, what="three receipts")
            first = data.receipts()
            for path, receipt in first.items():
                content = (data.source / path).read_bytes()
                assert (receipt.sha256, receipt.size) == (hashlib.sha256(content).hexdigest(), len(content))
            wait_until(
                lambda: data.events("download_watchdog", "listing_complete"), what="a complete listing"
            )
            assert [e["path"] for e in data.events("download_watchdog", "source_refused")] == ["link.parquet"]

            write_fineweb(data.source / "001.parquet", 160, seed=9)
            changed = wait_until(
                lambda: data.events("download_watchdog", "source_changed"), what="the change"
            )
            assert [event["path"] for event in changed] == ["001.parquet"]
            assert data.receipts()["001.parquet"].sha256 != first["001.parquet"].sha256

            (data.source / "002.parquet").unlink()
            wait_until(lambda: data.events("download_watchdog", "source_vanished"), what="the loss")
            assert "002.parquet" in data.receipts()

            args = {"path": "000.parquet", "sha256": first["000.parquet"].sha256}
            asked = file_request(data.pipeline.layout, DOWNLOAD_WATCHDOG, "dispute", args)
            wait_until(lambda: data.events("download_watchdog", "file_reverified"), what="another look")
            assert read_outcome(data.pipeline.layout, asked) == {"receipt": "disputed"}
            assert data.receipts()["000.parquet"].state == "verified"
        finally:
            assert daemon.stop() == 0
        assert [e["event"] for e in data.events("download_watchdog")].count("source_vanished") == 1

    def test_it_waits_for_a_folder_that_is_not_there_and_starts_another_lister_for_a_dead_one(
        self, tmp_path: Path
    ) -> None:
        data = with_files(tmp_path, 1)
        data.source.rename(tmp_path / "away")
        daemon = data.start("download_watchdog")
        try:
            told = wait_until(lambda: data.events("download_watchdog", "source_unavailable"), what="the word")
            assert str(data.source) in told[0]["reason"]
            lister = next(each for each in children_tree(daemon.pid) if "lister" in command_of(each.pid))
            signal_process(lister, signal.SIGKILL)
            wait_until(lambda: data.events("download_watchdog", "lister_failed"), what="the loss")
            (tmp_path / "away").rename(data.source)
            wait_until(data.receipts, what="the receipt")
            assert data.events("download_watchdog", "source_available")
        finally:
            assert daemon.stop() == 0

    def test_a_file_still_being_written_gets_no_receipt_before_it_is_quiet(self, tmp_path: Path) -> None:
        data = make_pipeline(tmp_path, stage__settle="1s")
        growing = data.source / "a.parquet"
        daemon = data.start("download_watchdog")

        def receipt_of() -> str | None:
            receipt = data.receipts().get("a.parquet")
            return receipt and receipt.sha256

        def content() -> str:
            return hashlib.sha256(growing.read_bytes()).hexdigest()

        try:
            for number in range(4):
                written = time.monotonic()
                with growing.open("ab") as stream:
                    stream.write(bytes([number]) * 1000)
                size = growing.stat().st_size
                wait_until(lambda: data.listed().get("a.parquet") == size, what="the next look")  # noqa: B023
                # Where this test was kept waiting, the file was quiet for so long indeed.
                assert receipt_of() != content() or time.monotonic() - written >= 1.0
            wait_until(lambda: receipt_of() == content(), what="the receipt")
        finally:
            daemon.stop()

    def test_files_that_did_not_change_for_so_long_are_read_at_first_sight(self, tmp_path: Path) -> None:
        library = Path(email.__file__).parent  # files that nobody touched for a while
        age_s = time.time() - max(file.stat().st_ctime for file in library.glob("*.py"))
        if age_s < 4 * LONG_S:
            pytest.skip("this Python was installed just now")
        source = {"kind": "folder", "path": str(library), "include": ["*.py"]}
        data = make_pipeline(tmp_path, dataset__source=source, stage__settle=f"{age_s / 2:.0f}s")
        daemon = data.start("download_watchdog")
        try:
            wait_until(lambda: data.events("download_watchdog", "listing_complete"), what="all receipts")
        finally:
            daemon.stop()
        assert "event=files_settle" not in daemon.said()

    def test_nobody_wonders_why_nothing_begins(self, tmp_path: Path) -> None:
        data = make_pipeline(tmp_path, stage__settle="1h")
        daemon = data.start("download_watchdog")

        def warned(word: str) -> list[str]:
            events = data.events("download_watchdog", "source_unavailable")
            return [e["reason"] for e in events if e["level"] == "warning" and word in e["reason"]]

        def is_shown(words: str) -> None:
            wait_until(
                lambda: re.search(words, data.status(DOWNLOAD_WATCHDOG).get("text", "")), what="the status"
            )
            assert re.search(words, stoker("status", data.file).stdout)

        try:
            wait_until(lambda: warned("holds no file that matches *.parquet"), what="the warnings")
            is_shown("holds no file that matches")
            write_fineweb(data.source / "a.parquet", 20)
            settles = r"1 file settles \(stage.settle: 1 h\), .* left until the first is read"
            is_shown(settles)
            assert re.search(settles, daemon.said())
            data.source.rename(tmp_path / "away")
            wait_until(lambda: warned("is not there; mount it"), what="the warnings")
            is_shown("is not there; mount it")
        finally:
            daemon.stop()

    def test_once_refuses_a_missing_folder_with_a_sentence_and_drains_an_empty_one(
        self, tmp_path: Path
    ) -> None:
        data = make_pipeline(tmp_path)
        assert data.once("download_watchdog").returncode == 0
        data.source.rmdir()
        ended = data.once("download_watchdog")
        assert ended.returncode == 69
        assert f"the source folder {data.source} is not there" in ended.stderr
        assert "Traceback" not in ended.stderr

    @pytest.mark.parametrize(
        ("link", "to", "key"),
        [
            ("state", "source/state", "state: lies inside"),
            ("hot", "source/hot", "lies inside dataset.source.path"),
            ("source", "hot/parquet", "dataset.source.path: "),
        ],
    )
    def test_a_source_that_is_one_with_a_directory_of_ours_through_a_link_is_refused(
        self, tmp_path: Path, link: str, to: str, key: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / to).mkdir(parents=True)
        (tmp_path / link).symlink_to(tmp_path / to)
        data = make_pipeline(tmp_path)
        data.pipeline.hot.mkdir(exist_ok=True)  # as the stage-shard loop leaves it
        Lock.acquire(data.pipeline.hot_layout.owner_lock, purpose=data.pipeline.owner).release()
        assert exit_code(["config", "check", str(data.file)]) == 78
        ended = data.once("download_watchdog")
        assert ended.returncode == 78
        for told in (capsys.readouterr().err, ended.stderr):
            assert key in told
            assert "lies inside" in told
            assert "Traceback" not in told
        assert not data.receipts()

    def test_a_folder_that_is_suddenly_empty_is_taken_for_unmounted(self, tmp_path: Path) -> None:
        data = with_files(tmp_path)
        data.receive()
        listed = data.listed()
        for file in data.source.iterdir():
            file.unlink()
        ended = data.once("download_watchdog")
        assert ended.returncode == 69
        assert "mount it" in ended.stderr
        assert data.listed() == listed

    def test_a_damaged_receipt_is_set_aside_and_written_again(self, tmp_path: Path) -> None:
        data = with_files(tmp_path)
        data.receive()
        good = data.receipts()
        record = data.pipeline.layout.receipt("prose", "001.parquet")
        record.write_bytes(record.read_bytes()[:-20])
        assert data.once("download_watchdog").returncode == 0
        assert data.receipts() == good
        assert data.events("download_watchdog", "record_damaged")


class TestStageShard:
    def test_the_tokenizers_training_is_shown_with_its_share(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = with_files(tmp_path, 1)
        data.receive()
        for name, value in halts_at(tmp_path / "halts", [100]).items():
            monkeypatch.setenv(name, value)
        daemon = data.start("stage_shard")
        try:
            told = "training the tokenizer: its text is read, the vocabulary is made of it"
            wait_until(lambda: data.status().get("text", "").startswith(told), what="the status")
            assert data.status()["tokenizer_percent"] == 100
            assert told in stoker("status", data.file).stdout
            assert "event=tokenizer_training" in daemon.said()
        finally:
            daemon.kill()

    def test_good_files_are_built_and_bad_ones_named_with_the_source_folder_untouched(
        self, tmp_path: Path
    ) -> None:
        data = with_files(tmp_path, dataset__filters={"min_chars": 20, "at_least": {"language_score": 0.7}})
        folder = data.source
        shutil.copy(folder / "001.parquet", folder / "copy.parquet")
        # Its footer is whole, and it is the first that the tokenizer would be trained on.
        flip_page(write_fineweb(folder / "000-cursed.parquet", 200, seed=7, row_group=50), row_group=2)
        truncate(write_fineweb(folder / "cut.parquet", 60, seed=8))
        write_columns(folder / "bare.parquet", text=pa.array(["no score here at all, sadly enough"] * 30))
        (folder / "readme.parquet").write_text("not parquet at all")
        before = fingerprint(folder)

        assert data.once("download_watchdog").returncode == 0
        data.build()

        states = data.states()
        assert sorted(states.pop(twin) for twin in ("001.parquet", "copy.parquet")) == [
            "duplicate",
            "released",
        ]
        assert states == {
            "000.parquet": "released",
            **dict.fromkeys(
                ("000-cursed.parquet", "bare.parquet", "cut.parquet", "readme.parquet"), "quarantined"
            ),
        }
        reasons = data.reasons()
        assert {path: each["reason"] for path, each in reasons.items()} == {
            "000-cursed.parquet": "page_corrupt",
            "bare.parquet": "missing_column",
            "cut.parquet": "truncated",
            "readme.parquet": "not_parquet",
        }
        cursed = reasons["000-cursed.parquet"]
        assert (cursed["row_group"], cursed["column"]) == (2, "text")
        pin = data.pin()
        assert pin.complete
        assert len(pin.listing) == 7
        assert pin.tokenizer_trained_on[0][0] == "000.parquet"
        for source in data.sources().values():
            if source.state == "released":
                proof = prove_set(data.pipeline.hot_layout.shard_set("prose", source.key), key=source.key)
                assert (proof.verdict, proof.manifest_sha256) == ("proven", source.manifest_sha256)
                assert proof.manifest.books.to_mapping() == source.books.to_mapping()
        assert fingerprint(folder) == before
        assert not list(data.pipeline.hot_layout.parquet.iterdir())
        assert not list(data.pipeline.hot_layout.building.iterdir())
        again = data.once("stage_shard")
        assert again.returncode == 0
        assert "2 files built" in again.stderr
        assert "4 quarantined" in again.stderr

    def test_files_quarantined_for_a_column_are_looked_at_again_when_another_is_configured(
        self, tmp_path: Path
    ) -> None:
        data = with_files(tmp_path, dataset__text_column="body")
        data.drain()
        assert set(data.states().values()) == {"quarantined"}
        assert "quarantined" in data.once("stage_shard").stderr
        assert set(data.states().values()) == {"quarantined"}

        data.file.write_text(data.file.read_text().replace("text_column: body", "text_column: text"))
        data.drain()

        assert set(data.states().values()) == {"released"}

    def test_a_given_tokenizer_is_frozen_as_it_is(self, drained: Template, tmp_path: Path) -> None:
        frozen = drained.made.pipeline.layout.tokenizer("prose", 1)
        data = drained.again(tmp_path, tokenizer={"file": str(frozen)})
        data.drain()
        assert data.pin().tokenizer_trained_on is None
        assert data.pin().build_id == drained.made.pin().build_id
        assert data.sets() == drained.made.sets()

    def test_a_second_pipeline_on_the_same_hot_directory_is_refused_by_name(
        self, drained: Template, tmp_path: Path
    ) -> None:
        data = drained.copy(tmp_path)
        daemon = data.start("stage_shard")
        try:
            other = make_pipeline(tmp_path / "other", name="second", hot=str(data.pipeline.hot))
            ended = other.once("stage_shard")
            assert ended.returncode == 75
            assert f"pipeline {data.pipeline.name}" in ended.stderr
        finally:
            assert daemon.stop() == 0
        assert read_holder(data.pipeline.hot_layout.owner_lock) is None

    def test_lost_and_damaged_things_are_made_again_byte_for_byte(
        self, drained: Template, tmp_path: Path
    ) -> None:
        data = drained.copy(tmp_path)
        sets, sources, pin = data.sets(), data.sources(), data.pin()
        layout, hot = data.pipeline.layout, data.pipeline.hot_layout
        one, two, three = (hot.shard_set("prose", source.key) for source in sources.values())
        shutil.rmtree(one)  # the set is gone
        layout.source("prose", "001.parquet").write_bytes(b"{}")  # the record is damaged, the set is whole
        layout.source("prose", "002.parquet").unlink()  # the record is gone, the set is damaged
        victim = three / "train-00000.bin"
        victim.write_bytes(victim.read_bytes()[:-1] + b"\xff")
        layout.dataset("prose").write_bytes(b"not a record")
        (hot.building / "0123456789abcdef").mkdir(parents=True)
        (hot.parquet / ".tmp-left.parquet").write_bytes(b"half")
        was = two.stat().st_ino

        ended = data.once("stage_shard")

        assert ended.returncode == 0, ended.stderr
        assert data.sets() == sets
        # What its record forgot of the second, its set does not tell: which engine was found right for it.
        forgot = {"001.parquet": replace(sources["001.parquet"], engine=None)}
        assert data.sources() == {**sources, **forgot}
        assert data.pin().build_id == pin.build_id
        assert two.stat().st_ino == was
        assert len(data.events("stage_shard", "shard_set_invalid")) == 1
        assert not list(hot.building.iterdir())
        assert not list(hot.parquet.iterdir())
        assert list(layout.quarantine.glob(f"shards-*/{three.name}/manifest.json"))

    def test_a_pin_that_is_not_there_any_more_is_made_of_the_tokenizer_that_is(
        self, drained: Template, tmp_path: Path
    ) -> None:
        data = drained.copy(tmp_path)
        sets, pin = data.sets(), data.pin()
        data.pipeline.layout.dataset("prose").unlink()
        ended = data.once("stage_shard")
        assert ended.returncode == 0, ended.stderr
        assert data.sets() == sets
        assert (data.pin().build_id, data.pin().complete) == (pin.build_id, True)

    def test_an_empty_folder_where_hot_was_is_taken_for_unmounted_until_told_otherwise(
        self, drained: Template, tmp_path: Path
    ) -> None:
        data = drained.copy(tmp_path)
        sets, states, hot = data.sets(), data.states(), data.pipeline.hot
        hot.rename(tmp_path / "disk")
        hot.mkdir()
        daemon = data.start("stage_shard")
        try:
            wait_until(lambda: data.events("stage_shard", "list_failed"), what="the finding")
            found = data.events("stage_shard", "list_failed")[-1]["reason"]
            assert "lock is not there or is another; mount" in found
            remedy = found.split("`")[1]
            assert not list(hot.iterdir())
            hot.rmdir()
            (tmp_path / "disk").rename(hot)
            wait_until(lambda: read_holder(data.pipeline.hot_layout.owner_lock), what="hot owned again")
        finally:
            assert daemon.stop() == 0
        assert (data.sets(), data.states()) == (sets, states)
        shutil.rmtree(hot)
        subprocess.run(["sh", "-c", remedy], check=True)  # what it held is lost
        ended = data.once("stage_shard")
        assert ended.returncode == 0, ended.stderr
        assert (data.sets(), data.states()) == (sets, states)

    def test_hot_that_is_swapped_for_another_folder_ends_its_lister(self, tmp_path: Path) -> None:
        hot = tmp_path / "hot"
        task = {"role": "hot", "root": str(hot), "dataset": "prose", "owner": "me", "expected": 0}
        lister = Worker("stoker.corpus.staging.lister_worker", task, name="list", keep_open=True)
        said: list[str] = []

        def heard(word: str) -> bool:
            said.extend(message["kind"] for message in lister.messages())
            return word in said

        try:
            lister.send({"look": 1})
            wait_until(lambda: heard("seen"), what="the first look")
            hot.rename(tmp_path / "disk")
            hot.mkdir()
            lister.send({"look": 2})
            wait_until(lister.poll, what="its end")
        finally:
            stop_worker(lister, 5.0)
        ended = lister.poll()
        assert ended is not None
        assert (ended.kind, ended.code) == ("failed", 69)
        assert said.count("seen") == 1

    def test_a_duplicate_takes_the_place_of_an_original_that_lost_set_and_file(
        self, drained: Template, tmp_path: Path
    ) -> None:
        data = drained.copy_with_source(tmp_path)
        shutil.copy(data.source / "000.parquet", data.source / "twin.parquet")
        data.drain()
        sets = data.sets()
        assert data.states()["twin.parquet"] == "duplicate"
        (data.source / "000.parquet").unlink()
        original = data.sources()["000.parquet"]
        shutil.rmtree(data.pipeline.hot_layout.shard_set("prose", original.key))
        data.drain()
        assert data.states() == {
            "000.parquet": "duplicate",
            "001.parquet": "released",
            "002.parquet": "released",
            "twin.parquet": "released",
        }
        assert data.sets() == sets


def see_the_builders_end(data: DataPipeline, pid: int) -> None:
    """The idle builders are counted with what they used, which stays when they have ended."""

    def seen() -> dict[str, float]:
        status = json.loads(data.pipeline.runtime.status(STAGE_SHARD).read_bytes())
        return status["processes"]["builder"]

    wait_until(lambda: seen()["count"] and seen()["cpu_s"] > 0, what="the builders")
    before = seen()
    assert before["rss_bytes"] > 20 << 20 and before["pss_bytes"] > 1 << 20 and before["write_bytes"] > 0
    for process in children_tree(pid):
        if "build_worker" in command_of(process.pid):
            signal_process(process, signal.SIGKILL)
    after = wait_until(lambda: (now := seen())["count"] == 0 and now, what="their end")
    counters = ("cpu_s", "major_faults", "read_bytes", "write_bytes")
    assert all(after[name] >= before[name] for name in counters) and after["rss_bytes"] == 0
    with data.pipeline.layout.samples(STAGE_SHARD).open(newline="") as table:
        first = next(csv.DictReader(table))
    assert int(first["daemon_pss_bytes"]) > 5 << 20 and int(first["state_free_bytes"]) > 0


def test_both_daemons_stay_small_and_light_while_data_flows_through_them(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path)
    daemons = {name: data.start(name) for name in ("download_watchdog", "stage_shard")}
    try:
        for number in range(2):
            write_fineweb(data.source / f"{number:03d}.parquet", 150, seed=number)
        wait_until(lambda: list(data.states().values()) == ["released"] * 2, what="two sets")
        wait_until(lambda: data.pin().complete, what="the complete pin")
        listers = [
            process
            for daemon in daemons.values()
            for process in children_tree(daemon.pid)
            if "lister_worker" in command_of(process.pid)
        ]
        assert len(listers) == 2
        for pid in [*(daemon.pid for daemon in daemons.values()), *(lister.pid for lister in listers)]:
            status = Path(f"/proc/{pid}/status").read_text()
            assert int(re.search(r"VmRSS:\s+(\d+)", status)[1]) <= 45 * 1024, status
            assert not HEAVY.search(Path(f"/proc/{pid}/maps").read_text())
        holder = read_holder(data.pipeline.layout.lock("stage_shard"))
        tokens = sum(source.books.train_tokens for source in data.sources().values())

        def told() -> bool:
            """The records come first, and memory is measured every few seconds only."""
            metrics = urllib.request.urlopen(f"http://{holder.extra['metrics']}/metrics").read().decode()
            resident = float(re.search(r"\nstoker_shard_workers_rss_bytes (\S+)", metrics)[1])
            return (
                f'stoker_shard_tokens{{split="train"}} {float(tokens)}' in metrics
                and 'stoker_shard_sources{state="released"} 2.0' in metrics
                and resident >= 10 * 2**20  # a lister at least
            )

        wait_until(told, what="the metrics of two sets and a lister")
        see_the_builders_end(data, daemons["stage_shard"].pid)
        left = [process for daemon in daemons.values() for process in children_tree(daemon.pid)]
    finally:
        codes = [daemon.stop() for daemon in daemons.values()]
    assert codes == [0, 0]
    wait_gone(left, ENDING_S)


@pytest.mark.root
def test_a_full_state_disk_pauses_both_daemons_which_go_on_when_there_is_room(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small tmpfs")
    data = make_pipeline(tmp_path)
    state = data.pipeline.layout.state
    state.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(state)], check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        daemons = {name: data.start(name) for name in ("download_watchdog", "stage_shard")}
        try:
            write_fineweb(data.source / "000.parquet", 150)
            wait_until(lambda: data.states() == {"000.parquet": "released"}, what="the first set")
            fill(state / "filler")
            write_fineweb(data.source / "001.parquet", 150, seed=2)
            wait_until(lambda: "state_unwritable" in daemons["download_watchdog"].said(), what="the pause")
            (state / "filler").unlink()
            wait_until(lambda: list(data.states().values()) == ["released"] * 2, what="the second set")
            fill(state / "filler")
            one = data.sources()["000.parquet"]
            shutil.rmtree(data.pipeline.hot_layout.shard_set("prose", one.key))
            daemons["stage_shard"].kill()
            daemons["stage_shard"] = data.start("stage_shard")
            wait_until(lambda: "state_unwritable" in daemons["stage_shard"].said(), what="the other's pause")
            (state / "filler").unlink()
            wait_until(lambda: data.pipeline.hot_layout.shard_set("prose", one.key).exists(), what="it again")
            wait_until(lambda: list(data.states().values()) == ["released"] * 2, what="both")
        finally:
            codes = [daemon.stop() for daemon in daemons.values()]
        assert codes == [0, 0]
    finally:
        subprocess.run(["umount", "-l", str(state)], check=False)


def fill(file: Path) -> None:
    """Write until the disk is full."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, b"x" * size)
    finally:
        os.close(descriptor)


@pytest.mark.long
@pytest.mark.root
def test_a_full_hot_disk_pauses_the_work_which_goes_on_when_there_is_room(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small tmpfs")
    hot = tmp_path / "small"
    hot.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "none", str(hot)], check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        data = with_files(tmp_path, hot=str(hot), stage__free_floor="0B")
        data.receive()
        daemon = data.start("stage_shard")
        try:
            wait_until(lambda: data.events("stage_shard", "disk_full"), what="the full disk")
            subprocess.run(["mount", "-o", "remount,size=20m", str(hot)], check=True)
            wait_until(lambda: list(data.states().values()) == ["released"] * 2, what="two sets")
        finally:
            assert daemon.stop() == 0
        assert not data.reasons()
    finally:
        subprocess.run(["umount", "-l", str(hot)], check=False)


@pytest.mark.root
def test_what_was_staged_too_early_makes_room_for_the_file_the_tokenizer_waits_for(tmp_path: Path) -> None:
    """Before the listing is known any file is staged; on a disk that is nearly full nothing else went on."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small tmpfs")
    hot = tmp_path / "small"
    hot.mkdir()
    data = make_pipeline(tmp_path, hot=str(hot), stage__free_floor="0B")
    early = write_fineweb(data.source / "001.parquet", 400, seed=2)
    size = write_fineweb(data.source / "000.parquet", 400, seed=1).stat().st_size
    room = 2.5 * early.stat().st_size + 40_960 + 0.9 * size  # the early one, its set, and not the other
    options = f"size={int(room)}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(hot)], check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        data.receive()
        receipt = data.receipts()["001.parquet"]
        assert receipt.sha256 is not None
        source = Source("prose", "001.parquet", receipt.size, receipt.sha256)
        place = data.pipeline.hot_layout.parquet / parquet_name(source)
        place.parent.mkdir()
        shutil.copyfile(early, place)
        write_source(data.pipeline.layout, source.moved("staged"))
        (hot / ".stoker-owner.lock").touch()  # or the records would speak of another disk
        ended = data.once("stage_shard")
        assert ended.returncode == 74, ended.stderr  # there is no room for both sets
        renewed = data.events("stage_shard", "source_renewed")
        assert [(each["path"], each["reason"]) for each in renewed] == [
            ("001.parquet", "000.parquet needs its space first")
        ]
        assert data.states() == {"000.parquet": "released", "001.parquet": "seen"}
        assert data.pin().tokenizer_trained_on == (("000.parquet", data.sources()["000.parquet"].sha256),)
    finally:
        subprocess.run(["umount", "-l", str(hot)], check=False)


def test_whatever_lies_in_requests_no_daemon_stops_and_the_good_ones_are_answered(
    drained: Template, tmp_path: Path
) -> None:
    data = drained.copy(tmp_path)
    layout = data.pipeline.layout
    asked = {daemon: file_request(layout, daemon, "shout", {}) for daemon in (DOWNLOAD_WATCHDOG, STAGE_SHARD)}
    for daemon in asked:
        litter_requests(layout.requests(daemon))
    assert data.once("download_watchdog").returncode == 0
    data.build()
    for daemon, request in asked.items():
        assert "refused" in (read_outcome(layout, request) or {}), "it was read"
        left = [file.name for file in layout.requests(daemon).iterdir()]
        assert all(name.startswith(".tmp-") for name in left), left
    reasons = [read_record(file) for file in layout.quarantine.glob("record-*/reason.json")]
    assert len([one for one in reasons if one["path"].endswith("\\udcff.json")]) == len(asked)


@pytest.mark.parametrize("name", [DOWNLOAD_WATCHDOG, STAGE_SHARD])
def test_a_hangup_has_a_daemon_begin_again_with_the_file_as_it_is_now(tmp_path: Path, name: str) -> None:
    pipeline = make_pipeline(tmp_path)
    daemon = pipeline.start(name)
    try:
        pipeline.file.write_text(pipeline.file.read_text().replace("settle: 0s", "settle: 7s"))
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: daemon.said().count("event=daemon_ready") == 2, what="READY again")
        (reloaded,) = pipeline.events(name, "reloaded")
        assert reloaded["changed"] == ["stage.settle"]
    finally:
        assert daemon.stop() == 0
