"""Staging, arrival and --files-list with the real daemons and workers, across file systems too."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.corpus.records.receipts import write_receipt
from stoker.corpus.records.sources import Source, write_source
from stoker.kit.workers.parent import Worker
from stoker.store.errors import DataError, UsageError
from stokerd.common.files_list import insist_known, read_files_list
from support.audits import audit_of
from support.mounts import apart
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, Template, make_pipeline
from support.processes import daemon_command, stop_worker
from support.sites import write_site
from support.waiting import wait_until

TOKENIZER = {"train": {"vocab_size": 400, "train_bytes": "10KB"}}

# In stage workers: small steps, and a halt (once) when so much is copied. A kill -9 of the daemon takes the
# halted worker along.
HALT_AT = 8 * 4096
COPYING = f"""
import os, signal, sys
if "stoker.corpus.staging.stage_worker" in sys.orig_argv:
    from stoker.store import direct
    direct.CHUNK = 4096
    whole = direct.DirectWriter.append
    def append(self, chunk):
        whole(self, chunk)
        if self.done >= {HALT_AT}:
            try:
                os.unlink(os.path.join(os.path.dirname(__file__), "halt"))
            except FileNotFoundError:
                return
            os.kill(os.getpid(), signal.SIGSTOP)
    direct.DirectWriter.append = append
"""

# In build workers: the source is written to, in place, when its set is about to be published (once).
CHANGING = """
import os, sys
if "stoker.shards.build.build_worker" in sys.orig_argv:
    from stoker.shards.build import publish as sealing
    here = os.path.dirname(__file__)
    whole = sealing.seal
    def seal(build, *rest, **named):
        try:
            if build.task.source_path != os.path.basename(os.environ["STOKER_TEST_SOURCE"]):
                raise FileNotFoundError
            os.rename(os.path.join(here, "new"), os.path.join(here, "used"))
        except FileNotFoundError:
            return whole(build, *rest, **named)
        with open(os.path.join(here, "used"), "rb") as new:
            content = new.read()
        with open(os.environ["STOKER_TEST_SOURCE"], "r+b") as file:
            file.write(content)
            file.truncate()
        return whole(build, *rest, **named)
    from stoker.shards.build import build_worker
    sealing.seal = build_worker.seal = seal
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A directory on another file system than tmp_path: hard links do not go there."""
    place = Path("/dev/shm") / f"stoker-test-{uuid.uuid4().hex[:12]}"
    place.mkdir()
    if place.stat().st_dev == tmp_path.stat().st_dev:
        place.rmdir()
        pytest.skip("/dev/shm and the test's directory are one file system")
    yield place
    shutil.rmtree(place)


def site(folder: Path, code: str) -> dict[str, str]:
    """The environment of Pythons that run this code as they start."""
    folder.mkdir(exist_ok=True)
    write_site(folder, code)
    return {"PYTHONPATH": str(folder)}


def test_a_copy_across_file_systems_goes_on_after_a_kill_and_the_set_is_the_same(
    drained: Template, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of the given tokenizer's pipeline, wherever files were: not mounted, or links for a while."""
    how = {"hot": str(elsewhere), "tokenizer": drained.tokenizer, "shard__workers": 2}
    data = make_pipeline(tmp_path, **how, stage__copies=1)  # no other file is there before the kill
    shutil.copytree(drained.made.source, data.source, dirs_exist_ok=True)
    data.receive()
    for name, value in site(tmp_path / "site", COPYING).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "site" / "halt").touch()
    daemon = data.start("stage_shard")
    wait_until(lambda: not (tmp_path / "site" / "halt").exists(), what="the copy to be half done")
    daemon.kill()
    away = data.source.rename(tmp_path / "away")
    data.source.mkdir()  # the mount point
    data = make_pipeline(tmp_path, **how)
    daemon = data.start("stage_shard")
    try:
        wait_until(lambda: data.events("stage_shard", "source_unavailable"), what="the pause")
        wait_until(lambda: "mount it" in data.status().get("trouble", ""), what="the reason in the status")
        (away / "001.parquet").rename(tmp_path / "1.parquet")
        (away / "001.parquet").symlink_to(tmp_path / "1.parquet")
        data.source.rmdir()
        away.rename(data.source)
        wait_until(lambda: list(data.states().values()).count("released") == 2, what="the siblings")
        wait_until(
            lambda: "symbolic link" in str(data.events("stage_shard", "stage_failed")), what="the reason"
        )
        assert data.states()["001.parquet"] == "seen"
        (tmp_path / "1.parquet").rename(data.source / "001.parquet")
        wait_until(lambda: data.states()["001.parquet"] == "released", what="the file that came back")
        assert data.status()["parallelism"] == {"builders": 2, "copies": 2}  # the file says two builders
        # Released in the record first, then on the disk.
        wait_until(lambda: not list(data.pipeline.hot_layout.parquet.iterdir()), what="the copies to be gone")
    finally:
        assert daemon.stop() == 0
    assert HALT_AT in [each["bytes"] for each in data.events("stage_shard", "stage_resumed")]
    for word in ("source_unavailable", "source_available"):
        assert len(data.events("stage_shard", word)) == 1
    assert not data.reasons()
    assert (data.sets(), data.pin().build_id) == (drained.made.sets(), drained.made.pin().build_id)
    assert data.pin().tokenizer_trained_on is None


def test_a_source_that_is_written_to_under_its_link_is_disputed_hashed_again_and_built(
    drained: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is a quarantined one that differs from its receipt, once nobody knows any more what was found."""
    data = make_pipeline(tmp_path, tokenizer=drained.tokenizer)
    for number, name in enumerate("ab"):
        write_fineweb(data.source / f"{name}.parquet", 60, seed=number)
    for name, value in site(tmp_path / "site", CHANGING).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STOKER_TEST_SOURCE", str(data.source / "a.parquet"))
    write_fineweb(tmp_path / "site" / "new", 60, seed=9)
    data.receive()
    right = data.receipts()
    mended = replace(right["b.parquet"], sha256="0" * 64, etag="1-1-1")
    write_receipt(data.pipeline.layout, mended)
    bad = Source("prose", mended.path, mended.size, str(mended.sha256))
    write_source(data.pipeline.layout, replace(bad, state="quarantined", reason="page_corrupt"))
    daemons = [data.start("download_watchdog"), data.start("stage_shard")]
    try:
        wait_until(lambda: list(data.states().values()) == ["released"] * 2, what="the new contents built")
    finally:
        assert [daemon.stop() for daemon in daemons] == [0, 0]
    receipts, sources = data.receipts(), data.sources()
    assert receipts["b.parquet"].sha256 == sources["b.parquet"].sha256 == right["b.parquet"].sha256
    assert sources["a.parquet"].sha256 == receipts["a.parquet"].sha256 != right["a.parquet"].sha256
    words = ("receipt_disputed", "source_changed")
    told = {each["path"] for word in words for each in data.events("download_watchdog", word)}
    assert told == {"a.parquet", "b.parquet"}
    assert len(data.sets()) == 2
    assert audit_of(data.file)["balanced"]


class TestFilesList:
    @staticmethod
    def run(data: DataPipeline, daemon: str, *names: str) -> subprocess.CompletedProcess[str]:
        file = data.home / "list"
        file.write_text("".join(f"{name}.parquet\n" for name in names) + "\n")
        command = daemon_command(daemon, data.file, "--once", "--files-list", str(file))
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def test_only_listed_files_are_hashed_or_built_and_those_that_train_the_tokenizer_brought(
        self, tmp_path: Path
    ) -> None:
        data = make_pipeline(tmp_path, tokenizer=TOKENIZER)
        for number, name in enumerate("abcd"):
            write_fineweb(data.source / f"{name}.parquet", 60, seed=number)
        ended = self.run(data, "download_watchdog", "b")
        assert ended.returncode == 0, ended.stderr
        assert list(data.receipts()) == ["b.parquet"]
        assert len(data.listed()) == 4
        data.receive()
        ended = self.run(data, "stage_shard", "d")
        assert ended.returncode == 0, ended.stderr
        states = data.states()
        assert states["d.parquet"] == "released"
        assert set(states.values()) <= {"seen", "staged", "released"}
        assert list(states.values()).count("released") == 1
        assert "1 files built" in ended.stderr
        assert "not finished" not in ended.stderr

    @pytest.mark.parametrize("text", ["", "\n\n", None])
    def test_a_list_that_names_no_file_is_refused(self, tmp_path: Path, text: str | None) -> None:
        file = tmp_path / "list"
        if text is not None:
            file.write_text(text)
        with pytest.raises(UsageError, match="--files-list"):
            read_files_list(file)

    @pytest.mark.parametrize("name", ["../outside.parquet", "/etc/passwd"])
    def test_a_list_that_leaves_the_source_is_refused(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "list").write_text(f"{name}\n")
        with pytest.raises(DataError, match="correct the list"):
            insist_known(read_files_list(tmp_path / "list"), {"a.parquet"}, "the source")


class TestLister:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        (tmp_path / "root" / "sub").mkdir(parents=True)
        return tmp_path / "root"

    @staticmethod
    def task(root: Path) -> dict[str, Any]:
        about = {"include": [], "exclude": [], "state": str(root.parent / "state"), "owner": "a test"}
        return {"role": "folder", "root": str(root), **about}

    def start(self, root: Path) -> tuple[Worker, dict[str, Any]]:
        worker = Worker(
            "stoker.corpus.staging.lister_worker",
            self.task(root),
            name="list",
            keep_open=True,
        )
        return worker, look(worker, 1)

    def test_what_happens_in_a_folder_is_told_and_what_is_unfinished_is_not(self, root: Path) -> None:
        lister, first = self.start(root)
        try:
            assert first["polling"] == ""
            (root / "sub" / ".hidden.parquet").write_bytes(b"x")
            (root / "sub" / "a.parquet.tmp").write_bytes(b"x")
            (root / "sub" / "a.parquet.tmp").rename(root / "sub" / "a.parquet")
            hear(lister, "changed")
            assert look(lister, 2)["files"] == ["sub/a.parquet"]
            (root / "late").mkdir()
            hear(lister, "changed")
            look(lister, 3)
            (root / "late" / "b.parquet").write_bytes(b"x")
            hear(lister, "changed")
            assert look(lister, 4)["files"] == ["late/b.parquet", "sub/a.parquet"]
        finally:
            stop_worker(lister, 5.0)

    def test_a_root_that_is_removed_or_swapped_is_noticed_and_the_new_one_watched(self, root: Path) -> None:
        lister, _ = self.start(root)
        try:
            root.rename(root.with_name("old"))
            hear(lister, "changed")
            assert look(lister, 2)["missing"]
            (root / "sub").mkdir(parents=True)
            hear(lister, "changed")
            assert not look(lister, 3)["missing"]
            (root / "sub" / "a.parquet").write_bytes(b"x")
            hear(lister, "changed")
            assert look(lister, 4)["files"] == ["sub/a.parquet"]
        finally:
            stop_worker(lister, 5.0)

    @pytest.mark.parametrize("what", ["instances", "watches"])
    def test_where_no_inotify_is_left_the_folder_is_polled_and_says_why(self, root: Path, what: str) -> None:
        inner = [sys.executable, "-P", "-m", "stoker.corpus.staging.lister_worker"]
        limit = f"/proc/sys/user/max_inotify_{what}"
        alone = ["unshare", "--user", "--map-root-user", "sh", "-c", f'echo 0 > {limit} && exec "$@"', "sh"]
        if apart([]) is None or subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
            pytest.skip("no user namespace here")
        asked = "".join(f"{json.dumps(line)}\n" for line in (self.task(root), {"look": 1}))
        ended = subprocess.run(
            [*alone, *inner], input=asked, capture_output=True, text=True, timeout=60, check=True
        )
        said = [json.loads(line) for line in ended.stdout.splitlines()]
        (looked,) = [message for message in said if message.get("kind") == "looked"]
        assert f"max_user_{what}" in looked["polling"]
        assert not looked["missing"]


def hear(lister: Worker, word: str) -> dict[str, Any]:
    """The lister's next message of that kind."""
    found: list[dict[str, Any]] = []

    def heard() -> bool:
        assert lister.poll() is None
        found.extend(message for message in lister.messages() if message["kind"] == word)
        return bool(found)

    wait_until(heard, what=word)
    return found[-1]


def look(lister: Worker, number: int) -> dict[str, Any]:
    """Have a look, and wait for it: its last message, with the paths of all files as `files`."""
    lister.send({"look": number})
    files: list[str] = []
    last: dict[str, Any] = {}

    def over() -> bool:
        assert lister.poll() is None
        for message in lister.messages():
            if message["kind"] == "files" and message["look"] == number:
                files.extend(path for path, *_ in message["files"])
            if message["kind"] == "looked" and message["look"] == number:
                last.update(message)
        return bool(last)

    wait_until(over, what="the look")
    return {**last, "files": sorted(files)}
