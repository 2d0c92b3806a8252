"""Staging, arrival and --files-list with the real daemons and workers, across file systems too."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.kit.workers.parent import Worker
from stoker.store.errors import DataError, UsageError
from stokerd.common.files_list import insist_known, read_files_list
from support.mounts import apart
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.processes import stop_worker
from support.sites import write_site
from support.waiting import wait_until

TOKENIZER = {"train": {"vocab_size": 400, "train_bytes": "10KB"}}

# In stage workers: small steps, and a halt (once) when so much is copied. A kill -9 of the daemon takes the
# halted worker along.
COPYING = """
import os, signal, sys
if "stoker.corpus.staging.stage_worker" in sys.orig_argv:
    from stoker.store import direct
    direct.CHUNK = 4096
    whole = direct.DirectWriter.append
    def append(self, chunk):
        whole(self, chunk)
        if self.done >= 10 * 4096:
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


def parquet_left(data: DataPipeline) -> list[str]:
    return sorted(path.name for path in data.pipeline.hot_layout.parquet.iterdir())


def test_a_copy_across_file_systems_goes_on_after_a_kill_and_the_set_is_the_same(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_pipeline(tmp_path, hot=str(elsewhere), tokenizer=TOKENIZER)
    write_fineweb(data.source / "a.parquet", 600)
    data.receive()
    with monkeypatch.context() as patch:
        for name, value in site(tmp_path / "site", COPYING).items():
            patch.setenv(name, value)
        (tmp_path / "site" / "halt").touch()
        daemon = data.start("stage_shard")
        wait_until(lambda: not (tmp_path / "site" / "halt").exists(), what="the copy to be half done")
        daemon.kill()
        assert data.once("stage_shard").returncode == 0
    resumed = data.events("stage_shard", "stage_resumed")
    assert [(each["path"], each["bytes"]) for each in resumed] == [("a.parquet", 10 * 4096)]
    assert data.states() == {"a.parquet": "released"}
    assert parquet_left(data) == []
    peace = make_pipeline(tmp_path / "peace", tokenizer=TOKENIZER)
    shutil.copy(data.source / "a.parquet", peace.source)
    peace.drain()
    assert data.sets() == peace.sets()


def test_a_file_that_turned_into_a_link_holds_nobody_up_and_goes_on_once_it_is_a_file_again(
    tmp_path: Path, elsewhere: Path
) -> None:
    data = make_pipeline(tmp_path, hot=str(elsewhere), tokenizer=TOKENIZER, shard__workers=2)
    for number, name in enumerate("abc"):
        write_fineweb(data.source / f"{name}.parquet", 60, seed=number)
    data.receive()
    swapped = data.source / "b.parquet"
    swapped.rename(tmp_path / "b.parquet")
    swapped.symlink_to(tmp_path / "b.parquet")
    daemon = data.start("stage_shard")
    try:
        wait_until(lambda: list(data.states().values()).count("released") == 2, what="the siblings")
        wait_until(lambda: data.events("stage_shard", "stage_failed"), what="the reason")
        assert data.states()["b.parquet"] == "seen"
        assert "symbolic link" in data.events("stage_shard", "stage_failed")[0]["reason"]
        swapped.unlink()
        (tmp_path / "b.parquet").rename(swapped)
        wait_until(lambda: data.states()["b.parquet"] == "released", what="the file that came back")
        shown = data.status()["parallelism"]
    finally:
        assert daemon.stop() == 0
    assert shown == {"builders": 2, "copies": 2}  # the file says two builders


def test_staging_waits_for_an_unmounted_source_and_blames_no_file(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path, tokenizer=TOKENIZER)
    for number, name in enumerate("abc"):
        write_fineweb(data.source / f"{name}.parquet", 60, seed=number)
    data.receive()
    data.source.rename(tmp_path / "away")
    data.source.mkdir()  # the mount point
    daemon = data.start("stage_shard")
    try:
        wait_until(lambda: data.events("stage_shard", "source_unavailable"), what="the pause")
        wait_until(lambda: "mount it" in data.status().get("trouble", ""), what="the reason in the status")
        data.source.rmdir()
        (tmp_path / "away").rename(data.source)
        wait_until(lambda: set(data.states().values()) == {"released"}, what="everything built")
    finally:
        assert daemon.stop() == 0
    assert len(data.events("stage_shard", "source_unavailable")) == 1
    assert len(data.events("stage_shard", "source_available")) == 1
    assert not data.reasons()


def test_a_source_that_is_written_to_under_its_link_is_disputed_hashed_again_and_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_pipeline(tmp_path, tokenizer=TOKENIZER)
    file = write_fineweb(data.source / "a.parquet", 60)
    was = data.source / "a.parquet"
    for name, value in site(tmp_path / "site", CHANGING).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STOKER_TEST_SOURCE", str(was))
    write_fineweb(tmp_path / "site" / "new", 60, seed=9)
    data.receive()
    before = data.receipts()["a.parquet"].sha256
    daemons = [data.start("download_watchdog"), data.start("stage_shard")]
    try:
        wait_until(lambda: data.states().get("a.parquet") == "released", what="the new content built")
    finally:
        assert [daemon.stop() for daemon in daemons] == [0, 0]
    assert data.sources()["a.parquet"].sha256 == data.receipts()["a.parquet"].sha256 != before
    assert data.events("download_watchdog", "receipt_disputed") or data.events(
        "download_watchdog", "source_changed"
    )
    assert len(data.sets()) == 1
    assert file.exists()


class TestFilesList:
    @staticmethod
    def list_of(data: DataPipeline, *names: str) -> str:
        file = data.home / "list"
        file.write_text("".join(f"{name}\n" for name in names) + "\n")
        return str(file)

    @staticmethod
    def run(data: DataPipeline, daemon: str, *options: str) -> subprocess.CompletedProcess[str]:
        code = f"import sys; from stokerd.{daemon} import main; sys.exit(main())"
        command = [sys.executable, "-P", "-c", code, str(data.file), "--once", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    @pytest.fixture
    def data(self, tmp_path: Path) -> DataPipeline:
        made = make_pipeline(tmp_path, tokenizer=TOKENIZER)
        for number, name in enumerate("abcd"):
            write_fineweb(made.source / "sub" / f"{name}.parquet", 60, seed=number)
        return made

    def test_only_listed_files_are_built_and_those_that_train_the_tokenizer_brought(
        self, data: DataPipeline
    ) -> None:
        early = self.run(data, "stage_shard", "--files-list", self.list_of(data, "sub/d.parquet"))
        assert early.returncode == 69
        assert "stoker-download-watchdog" in early.stderr
        data.once("download_watchdog")
        ended = self.run(data, "stage_shard", "--files-list", self.list_of(data, "sub/d.parquet"))
        assert ended.returncode == 0, ended.stderr
        states = data.states()
        assert states["sub/d.parquet"] == "released"
        assert set(states.values()) <= {"seen", "staged", "released"}
        assert list(states.values()).count("released") == 1
        assert "1 files built" in ended.stderr
        assert "not finished" not in ended.stderr
        data.build()
        assert set(data.states().values()) == {"released"}

    def test_names_that_are_not_there_are_listed_and_nothing_is_done(self, data: DataPipeline) -> None:
        names = self.list_of(data, "sub/d.parquet", "sub/x.parquet", "c.parquet")
        for daemon in ("download_watchdog", "stage_shard"):
            ended = self.run(data, daemon, "--files-list", names)
            assert ended.returncode == 65
            assert "c.parquet, sub/x.parquet; correct the list" in ended.stderr
            data.once("download_watchdog")
        assert not data.sources() or set(data.states().values()) == {"seen"}

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

    def test_the_watchdog_hashes_listed_files_alone_and_lists_all(self, data: DataPipeline) -> None:
        ended = self.run(data, "download_watchdog", "--files-list", self.list_of(data, "sub/b.parquet"))
        assert ended.returncode == 0, ended.stderr
        assert list(data.receipts()) == ["sub/b.parquet"]
        assert len(data.listed()) == 4


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


def test_a_moved_source_folder_renews_the_receipts_of_its_files(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path)
    write_fineweb(data.source / "a.parquet", 60)
    data.receive()
    moved = tmp_path / "moved"
    data.source.rename(moved)
    data = make_pipeline(tmp_path, dataset__source={"kind": "folder", "path": str(moved)})
    data.source.rmdir()
    assert data.once("download_watchdog").returncode == 0
    assert data.receipts()["a.parquet"].file == str(moved / "a.parquet")
    assert [each["path"] for each in data.events("download_watchdog", "file_reverified")] == ["a.parquet"]
