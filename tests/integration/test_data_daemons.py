"""The data daemons on real files: from a folder of parquet to proven shard sets, whatever is wrong."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.corpus.records.sources import PUBLISHED, Source, write_source
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.kit.lock import Lock, read_holder
from stoker.kit.process import ProcessId, children_tree, signal_process
from stoker.kit.workers.parent import Worker
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD
from stoker.store.record import read_record
from stoker.store.requests import file_request, read_outcome
from support.halting import halts_at
from support.litter import litter_requests
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, Template, make_pipeline
from support.processes import ENDING_S, RunningDaemon, stop_worker, wait_gone
from support.waiting import wait_until

HEAVY = re.compile(r"torch|arrow|numpy|tokenizers|xxhash|safetensors")


def command_of(pid: int) -> str:
    """What a process runs; nothing where it has just ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def child_of(pid: int, word: str) -> ProcessId:
    """The child of a daemon whose command has that word."""
    return next(each for each in children_tree(pid) if word in command_of(each.pid))


def no_litter_stops_it(data: DataPipeline, daemon: str) -> None:
    """Whatever lies in its requests, a good one is answered."""
    layout = data.pipeline.layout
    litter_requests(layout.requests(daemon))
    request = file_request(layout, daemon, "shout", {})
    wait_until(lambda: read_outcome(layout, request), what="the answer")
    assert "refused" in (read_outcome(layout, request) or {}), "it was read"
    # It goes a moment after its outcome is there.
    wait_until(
        lambda: all(file.name.startswith(".tmp-") for file in layout.requests(daemon).iterdir()),
        what="its removal",
    )
    reasons = [read_record(file) for file in layout.quarantine.glob("record-*/reason.json")]
    assert len([one for one in reasons if one["path"].endswith("\\udcff.json")]) == 1


def hang_up(data: DataPipeline, daemon: RunningDaemon, name: str, key: str, *words: str) -> None:
    """Change the file under a daemon and send it SIGHUP; it has to begin again."""
    data.file.write_text(data.file.read_text().replace(*words))
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: daemon.said().count("event=daemon_ready") == 2, what="READY again")
    (reloaded,) = data.events(name, "reloaded")
    assert reloaded["changed"] == [key]


def with_files(tmp_path: Path, count: int = 2, **changes: object) -> DataPipeline:
    """A pipeline with so many good files."""
    data = make_pipeline(tmp_path, **changes)
    for number in range(count):
        write_fineweb(data.source / f"{number:03d}.parquet", 150, seed=number)
    return data


class TestDownloadWatchdog:
    def test_it_gives_receipts_and_notices_what_changes_vanishes_moves_or_is_disputed(
        self, tmp_path: Path
    ) -> None:
        data, folder = with_files(tmp_path, 3), tmp_path / "moved"
        layout = data.pipeline.layout
        data.receive()
        layout.listing("prose").unlink()
        before = data.receipts()
        damaged = layout.receipt("prose", "000.parquet")
        damaged.write_bytes(damaged.read_bytes()[:-20])
        (data.source / "link.parquet").symlink_to(data.source / "000.parquet")
        (data.source / "coming.parquet.incomplete").write_bytes(b"half")
        away = data.source.rename(tmp_path / "away")
        data = make_pipeline(tmp_path, stage__settle="1s", dataset__source__path=str(folder))
        events = partial(data.events, DOWNLOAD_WATCHDOG)
        daemon = data.start(DOWNLOAD_WATCHDOG)
        try:
            told = wait_until(lambda: events("source_unavailable"), what="the word")
            assert str(folder) in told[0]["reason"]
            signal_process(child_of(daemon.pid, "lister"), signal.SIGKILL)
            wait_until(lambda: events("lister_failed"), what="the loss")
            away.rename(folder)
            wait_until(lambda: events("listing_complete"), what="a complete listing")
            assert events("source_available")
            assert events("record_damaged"), "and written again"
            first = data.receipts()
            assert first == {
                path: replace(receipt, file=str(folder / path)) for path, receipt in before.items()
            }
            assert [event["path"] for event in events("source_refused")] == ["link.parquet"]

            write_fineweb(folder / "001.parquet", 160, seed=9)
            changed = wait_until(lambda: events("source_changed"), what="the change")
            assert [event["path"] for event in changed] == ["001.parquet"]
            assert data.receipts()["001.parquet"].sha256 != first["001.parquet"].sha256

            (folder / "002.parquet").unlink()
            wait_until(lambda: events("source_vanished"), what="the loss")
            assert "002.parquet" in data.receipts()

            args = {"path": "000.parquet", "sha256": first["000.parquet"].sha256}
            looks = len(events("file_reverified"))
            asked = file_request(layout, DOWNLOAD_WATCHDOG, "dispute", args)
            wait_until(lambda: len(events("file_reverified")) > looks, what="another look")
            assert read_outcome(layout, asked) == {"receipt": "disputed"}
            assert data.receipts()["000.parquet"].state == "verified"
            self.grows_until_it_is_quiet(data, folder / "a.parquet")
            listed = data.listed()
            for file in folder.iterdir():
                file.unlink()
            wait_until(
                lambda: "is empty but" in events("source_unavailable")[-1]["reason"], what="the finding"
            )
        finally:
            assert daemon.stop() == 0
        assert data.listed() == listed, "a folder that is suddenly empty is taken for unmounted"
        assert len(events("source_vanished")) == 1

    @staticmethod
    def grows_until_it_is_quiet(data: DataPipeline, growing: Path) -> None:
        """A file that is still being written gets no receipt."""

        def receipt_of() -> str | None:
            receipt = data.receipts().get(growing.name)
            return receipt and receipt.sha256

        def content() -> str:
            return hashlib.sha256(growing.read_bytes()).hexdigest()

        for number in range(3):
            written = time.monotonic()
            with growing.open("ab") as stream:
                stream.write(bytes([number]) * 1000)
            size = growing.stat().st_size
            wait_until(lambda: data.listed().get(growing.name) == size, what="the next look")  # noqa: B023
            # Where this test was kept waiting, the file was quiet for so long indeed.
            assert receipt_of() != content() or time.monotonic() - written >= 1.0
        wait_until(lambda: receipt_of() == content(), what="the receipt")

    def test_nobody_wonders_why_nothing_begins_and_a_hangup_has_it_begin_again_with_the_file_as_it_is_now(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data = make_pipeline(tmp_path, stage__settle="1h")
        daemon = data.start(DOWNLOAD_WATCHDOG)

        def is_shown(words: str, *, warned: bool = True) -> None:
            wait_until(
                lambda: re.search(words, data.status(DOWNLOAD_WATCHDOG).get("text", "")), what="the status"
            )
            assert exit_code(["status", str(data.file)]) is not None
            assert re.search(words, capsys.readouterr().out)
            events = data.events(DOWNLOAD_WATCHDOG, "source_unavailable")
            warnings = [event["reason"] for event in events if event["level"] == "warning"]
            assert any(re.search(words, reason) for reason in warnings) is warned

        try:
            no_litter_stops_it(data, DOWNLOAD_WATCHDOG)
            is_shown("holds no file that matches")
            write_fineweb(data.source / "a.parquet", 20)
            settles = r"1 file settles \(stage.settle: 1 h\), .* left until the first is read"
            is_shown(settles, warned=False)
            assert re.search(settles, daemon.said())
            away = data.source.rename(tmp_path / "away")
            is_shown("is not there; mount it")
            away.rename(data.source)
            hang_up(data, daemon, DOWNLOAD_WATCHDOG, "stage.settle", "settle: 1h", "settle: 0s")
            wait_until(data.receipts, what="the receipt")
        finally:
            assert daemon.stop() == 0

    @pytest.mark.long  # the test before proves the words, test_download_changes how --once is refused
    def test_once_refuses_a_missing_folder_with_a_sentence(self, tmp_path: Path) -> None:
        data = make_pipeline(tmp_path)
        data.source.rmdir()
        ended = data.once(DOWNLOAD_WATCHDOG)
        assert ended.returncode == 69
        assert f"the source folder {data.source} is not there" in ended.stderr
        assert "Traceback" not in ended.stderr

    @pytest.mark.long
    def test_once_drains_an_empty_folder(self, tmp_path: Path) -> None:
        assert make_pipeline(tmp_path).once(DOWNLOAD_WATCHDOG).returncode == 0

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
        said = [capsys.readouterr().err]
        if link == "source":
            ended = data.once(DOWNLOAD_WATCHDOG)
            assert ended.returncode == 78
            said.append(ended.stderr)
        for told in said:
            assert key in told
            assert "lies inside" in told
            assert "Traceback" not in told
        assert not data.receipts()


class TestStageShard:
    def test_a_hangup_for_another_column_has_files_looked_at_again_and_the_tokenizers_training_is_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data = with_files(tmp_path, dataset__text_column="body")
        data.receive()
        for name, value in halts_at(tmp_path / "halts", [100]).items():
            monkeypatch.setenv(name, value)
        daemon = data.start(STAGE_SHARD)
        try:
            wait_until(lambda: list(data.states().values()) == ["quarantined"] * 2, what="the refusal")
            words = ("text_column: body", "text_column: text")
            hang_up(data, daemon, STAGE_SHARD, "dataset.text_column", *words)
            told = "training the tokenizer: its text is read, the vocabulary is made of it"
            wait_until(lambda: data.status().get("text", "").startswith(told), what="the status")
            assert data.status()["tokenizer_percent"] == 100
            assert exit_code(["status", str(data.file)]) is not None
            assert told in capsys.readouterr().out
            assert "event=tokenizer_training" in daemon.said()
            wait_until(lambda: list(data.states().values()) == ["staged"] * 2, what="good files")
        finally:
            daemon.kill()

    def test_lost_and_damaged_things_are_made_again_byte_for_byte_once_hot_is_mounted(
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
        disk = data.pipeline.hot.rename(tmp_path / "disk")
        data.pipeline.hot.mkdir()  # the mount point

        daemon = data.start(STAGE_SHARD)
        try:
            wait_until(lambda: data.events(STAGE_SHARD, "list_failed"), what="the finding")
            found = data.events(STAGE_SHARD, "list_failed")[-1]["reason"]
            assert "lock is not there or is another; mount" in found
            assert not list(data.pipeline.hot.iterdir())
            data.pipeline.hot.rmdir()
            disk.rename(data.pipeline.hot)
            wait_until(lambda: read_holder(hot.owner_lock), what="hot owned again")
            other = make_pipeline(tmp_path / "other", name="second", hot=str(data.pipeline.hot))
            ended = other.once(STAGE_SHARD)
            assert ended.returncode == 75
            assert f"pipeline {data.pipeline.name}" in ended.stderr
            wait_until(lambda: list(data.states().values()) == ["released"] * 3, what="what was lost")
            wait_until(lambda: data.pin().complete, what="the pin")
            no_litter_stops_it(data, STAGE_SHARD)
        finally:
            assert daemon.stop() == 0
        assert read_holder(hot.owner_lock) is None
        assert data.sets() == sets
        # What its record forgot of the second, its set does not tell: which engine was found right for it.
        sources["001.parquet"] = replace(sources["001.parquet"], engine=None)
        assert data.sources() == sources
        assert data.pin().build_id == pin.build_id
        assert two.stat().st_ino == was
        assert len(data.events(STAGE_SHARD, "shard_set_invalid")) == 1
        assert not [*hot.building.iterdir(), *hot.parquet.iterdir()]
        assert list(layout.quarantine.glob(f"shards-*/{three.name}/manifest.json"))

        shutil.rmtree(data.pipeline.hot)
        layout.dataset("prose").unlink()  # it is made of the tokenizer that is there
        subprocess.run(["sh", "-c", found.split("`")[1]], check=True)  # what hot held is lost
        ended = data.once(STAGE_SHARD)
        assert (ended.returncode, "drained" in ended.stderr) == (0, True), ended.stderr
        assert (data.sets(), set(data.states().values())) == (sets, {"released"})
        assert (data.pin().build_id, data.pin().complete) == (pin.build_id, True)

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


def see_the_builders_end(data: DataPipeline, pid: int) -> None:
    """The idle builders are counted with what they used, which stays when they have ended."""

    def seen() -> dict[str, float]:
        status = json.loads(data.pipeline.runtime.status(STAGE_SHARD).read_bytes())
        return status["processes"]["builder"]

    # The sample may be of a time before their first write.
    before = wait_until(lambda: (now := seen())["write_bytes"] > 0 and now, what="the builders")
    assert before["rss_bytes"] > 20 << 20 and before["pss_bytes"] > 1 << 20 and before["cpu_s"] > 0
    for process in children_tree(pid):
        if "build_worker" in command_of(process.pid):
            signal_process(process, signal.SIGKILL)
    after = wait_until(lambda: (now := seen())["count"] == 0 and now, what="their end")
    counters = ("cpu_s", "major_faults", "read_bytes", "write_bytes")
    assert all(after[name] >= before[name] for name in counters) and after["rss_bytes"] == 0
    with data.pipeline.layout.samples(STAGE_SHARD).open(newline="") as table:
        first = next(csv.DictReader(table))
    assert int(first["daemon_pss_bytes"]) > 5 << 20 and int(first["state_free_bytes"]) > 0


def test_later_files_join_while_both_daemons_stay_small_and_light_and_pause_on_a_full_state_disk(
    drained: Template, tmp_path: Path
) -> None:
    data = make_pipeline(tmp_path, tokenizer=drained.tokenizer)
    state = data.pipeline.layout.state
    state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(state)]
    is_small = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    try:
        write_fineweb(data.source / "a.parquet", 100, seed=0)
        daemons = {name: data.start(name) for name in (DOWNLOAD_WATCHDOG, STAGE_SHARD)}
        try:
            wait_until(lambda: data.states().get("a.parquet") in PUBLISHED, what="the first set")
            for number, name in enumerate("cb"):
                write_fineweb(data.source / f"{name}.parquet", 100, seed=1 + number)
            wait_until(lambda: list(data.states().values()) == ["released"] * 3, what="the later ones")
            are_small_and_tell_all(data, daemons)
            if is_small:
                pause_until_there_is_room(data, daemons)
            left = [process for daemon in daemons.values() for process in children_tree(daemon.pid)]
        finally:
            codes = [daemon.stop() for daemon in daemons.values()]
        assert codes == [0, 0]
        wait_gone(left, ENDING_S)
    finally:
        subprocess.run(["umount", "-l", str(state)], check=False, capture_output=True)
    if not is_small:
        pytest.skip("a full state disk needs root and the right to mount a tmpfs: the rest passed")


def are_small_and_tell_all(data: DataPipeline, daemons: dict[str, RunningDaemon]) -> None:
    """Both daemons, their listers and the stage-shard loop's figures once three sets are there."""
    wait_until(lambda: data.pin().complete, what="the complete pin")
    assert data.pin().listing == ("a.parquet", "b.parquet", "c.parquet")
    body = wait_until(lambda: data.status() if data.status()["files_done"] == 3 else {}, what="the status")
    assert (body["files_of"], body["bytes_done"], body["eta_s"]) == (3, body["bytes_of"], None)
    listers = [child_of(daemon.pid, "lister_worker").pid for daemon in daemons.values()]
    for pid in [*(daemon.pid for daemon in daemons.values()), *listers]:
        status = Path(f"/proc/{pid}/status").read_text()
        assert int(re.search(r"VmRSS:\s+(\d+)", status)[1]) <= 45 * 1024, status
        assert not HEAVY.search(Path(f"/proc/{pid}/maps").read_text())
    tokens = sum(source.books.train_tokens for source in data.sources().values())

    def told() -> bool:
        """The records come first, and memory is measured every few seconds only."""
        metrics = data.metrics(STAGE_SHARD)
        return (
            metrics["stoker_shard_tokens", "train"] == tokens
            and metrics["stoker_shard_sources", "released"] == 3
            and metrics["stoker_shard_workers_rss_bytes",] >= 10 * 2**20  # a lister at least
        )

    wait_until(told, what="the metrics of three sets and a lister")
    see_the_builders_end(data, daemons[STAGE_SHARD].pid)


def pause_until_there_is_room(data: DataPipeline, daemons: dict[str, RunningDaemon]) -> None:
    """A state disk that fills pauses both daemons, which go on when there is room."""
    before, loop = list(data.states()), daemons[STAGE_SHARD].process
    loop.send_signal(signal.SIGSTOP)  # so that it finds a full disk with its next file
    write_fineweb(data.source / "d.parquet", 50, seed=4)
    wait_until(lambda: len(data.receipts()) == 4, what="its receipt")
    filler = data.pipeline.layout.state / "filler"
    fill(filler)
    write_fineweb(data.source / "e.parquet", 50, seed=5)
    loop.send_signal(signal.SIGCONT)
    for name, daemon in daemons.items():
        wait_until(lambda: "state_unwritable" in daemon.said(), what=f"the pause of {name}")  # noqa: B023
    assert list(data.states()) == before
    filler.unlink()
    wait_until(lambda: list(data.states().values()) == ["released"] * 5, what="the others")


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
