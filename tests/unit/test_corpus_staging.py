"""Bringing a source file to hot: linked or copied, resumed after a kill, whole or not at all, by no link."""

from __future__ import annotations

import errno
import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash

from crash import Crash, check_crashes
from stoker.corpus.source import hash_worker
from stoker.corpus.source.hash_worker import Background
from stoker.corpus.staging import stage_worker
from stoker.corpus.staging.cleanup_worker import main as sweep_main
from stoker.corpus.staging.stage_worker import Wanted, bring
from stoker.corpus.staging.stage_worker import main as stage_main
from stoker.store.direct import DirectReader, DiskFullError
from stoker.store.errors import StorageError, UnavailableError
from support.builds import Recorder
from support.parquet import flip_page, truncate, write_fineweb

PAGE = 4096


def hashed(task: dict[str, Any], report: Any) -> dict[str, Any]:
    """As the worker does, which makes a whole process give way to others."""
    return hash_worker.hash_unchanged(task, report, Background())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def no_link(*_: Any, **__: Any) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file system, as far as links go, and a commit with every second page."""
    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(stage_worker, "CHUNK", PAGE)
    monkeypatch.setattr(stage_worker, "LOOK_BYTES", 2 * PAGE)


class Killed(BaseException):
    """Stands for a kill -9: nobody catches it."""


def task_for(source: Path, hot: Path, **changes: Any) -> dict[str, Any]:
    data = source.read_bytes() if source.exists() else b""
    return {
        "root": str(source.parent),
        "home": str(source.parent),
        "file": str(source),
        "size": len(data),
        "sha256": sha256(data),
        "target": str(hot / "parquet" / "a-1.parquet"),
        "text_column": "text",
        "columns": {},
        "floor": 0,
        "decode": False,
        **changes,
    }


def stage(task: dict[str, Any]) -> dict[str, Any]:
    return stage_main(task, Recorder())  # type: ignore[arg-type]


class TestHashing:
    @staticmethod
    def task(file: Path) -> dict[str, Any]:
        stat = file.stat()
        return {
            "root": str(file.parent),
            "path": file.name,
            "size": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            "inode": stat.st_ino,
        }

    def test_a_file_that_stayed_the_same_is_hashed(self, tmp_path: Path) -> None:
        file = tmp_path / "a"
        file.write_bytes(b"words" * 1000)
        result = hashed(self.task(file), Recorder())
        assert (result["status"], result["sha256"]) == ("hashed", sha256(b"words" * 1000))

    def test_a_file_that_changed_was_replaced_or_went_is_not(self, tmp_path: Path) -> None:
        file = tmp_path / "a"
        file.write_bytes(b"words")
        task = self.task(file)
        stat = file.stat()
        (tmp_path / "b").write_bytes(b"sword")
        os.utime(tmp_path / "b", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        (tmp_path / "b").rename(file)
        assert hashed(task, Recorder()) == {"status": "changed"}
        file.unlink()
        assert hashed(task, Recorder()) == {"status": "missing"}

    @pytest.mark.parametrize("mode", ["ab", "r+b"])
    def test_a_file_that_is_written_to_while_it_is_hashed_is_not(self, tmp_path: Path, mode: str) -> None:
        file = tmp_path / "a"
        file.write_bytes(b"words")

        class Meddling(Recorder):
            def __call__(self, kind: str, **fields: Any) -> None:
                with file.open(mode) as stream:
                    stream.write(b"sword")

        assert hashed(self.task(file), Meddling()) == {"status": "changed"}

    def test_a_file_or_its_folder_that_becomes_a_link_is_not_read(self, tmp_path: Path) -> None:
        root, secret = tmp_path / "root", tmp_path / "secret"
        for folder in (root / "sub", secret):
            folder.mkdir(parents=True)
            (folder / "a").write_bytes(b"words")
        task = {**self.task(root / "sub" / "a"), "root": str(root), "path": "sub/a"}
        assert hashed(task, Recorder())["status"] == "hashed"
        (root / "sub").rename(tmp_path / "away")
        (root / "sub").symlink_to(tmp_path / "away")
        assert hashed(task, Recorder()) == {"status": "changed"}


class TestStaging:
    def test_a_file_is_linked_on_one_file_system_and_found_again_the_second_time(
        self, tmp_path: Path
    ) -> None:
        source = write_fineweb(tmp_path / "a.parquet", 60)
        task = task_for(source, tmp_path / "hot")
        assert stage(task)["how"] == "link"
        assert Path(task["target"]).samefile(source)
        assert stage(task)["how"] == "kept"

    def test_a_file_on_another_file_system_is_copied(self, tmp_path: Path) -> None:
        source = write_fineweb(tmp_path / "a.parquet", 60)
        memory = Path("/dev/shm") / f"stoker-test-{os.getpid()}"
        try:
            task = task_for(source, memory)
            assert stage(task)["how"] == "copy"
            assert Path(task["target"]).read_bytes() == source.read_bytes()
            assert _names(memory / "parquet") == ["a-1.parquet"]
        finally:
            sweep_main({"remove": [str(memory)]}, Recorder())  # type: ignore[arg-type]
        assert not memory.exists()

    def test_what_cannot_be_removed_stops_no_other_removal(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).write_bytes(b"x")
        stuck = str(tmp_path / "a" / "below a file")
        paths = [str(tmp_path / "no folder" / "c"), stuck, str(tmp_path / "b")]
        result = sweep_main({"remove": paths}, Recorder())  # type: ignore[arg-type]
        assert list(result["failed"]) == [stuck] and _names(tmp_path) == ["a"]

    @pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, 5 * PAGE + 1, 20 * PAGE])
    def test_a_copy_is_right_at_every_size_and_read_once(
        self, tmp_path: Path, size: int, copying: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = random.Random(size).randbytes(size)
        (tmp_path / "a").write_bytes(data)
        read = bytes_read(monkeypatch, tmp_path / "a")
        with (tmp_path / "a").open("rb") as source:
            brought = bring(source.fileno(), tmp_path / "b", Wanted(sha256(data), size, 0), lambda *_: None)
        assert (brought.how, brought.sha256) == ("copy", sha256(data))
        assert brought.xxh3 == xxhash.xxh3_128_hexdigest(data)
        assert (tmp_path / "b").read_bytes() == data
        assert sum(read) == size
        assert _names(tmp_path) == ["a", "b"]

    @pytest.mark.usefixtures("copying")
    def test_a_copy_leaves_the_free_floor_alone_and_keeps_nothing(self, tmp_path: Path) -> None:
        source = write_fineweb(tmp_path / "a.parquet", 60)
        task = task_for(source, tmp_path / "hot", floor=1 << 60)
        with pytest.raises(DiskFullError, match="free_floor") as caught:
            stage(task)
        assert caught.value.errno == errno.ENOSPC
        assert not _names(tmp_path / "hot" / "parquet")

    def test_other_content_than_the_receipts_is_not_let_in(self, tmp_path: Path) -> None:
        source = write_fineweb(tmp_path / "a.parquet", 60)
        task = task_for(source, tmp_path / "hot")
        flip_page(source, 0)
        assert stage(task) == {"status": "mismatch", "sha256": sha256(source.read_bytes())}
        assert not _names(tmp_path / "hot" / "parquet")

    @pytest.mark.usefixtures("copying")
    def test_other_content_is_not_let_in_by_a_copy_either_nor_another_size(self, tmp_path: Path) -> None:
        source = write_fineweb(tmp_path / "a.parquet", 60)
        task = task_for(source, tmp_path / "hot")
        flip_page(source, 0)
        assert stage(task) == {"status": "mismatch", "sha256": sha256(source.read_bytes())}
        source.write_bytes(source.read_bytes() + b"more")
        assert stage(task)["status"] == "mismatch"
        assert not _names(tmp_path / "hot" / "parquet")

    def test_a_missing_file_is_said_and_a_stale_one_on_hot_replaced(self, tmp_path: Path) -> None:
        source = write_fineweb(tmp_path / "a.parquet", 60)
        assert stage(task_for(tmp_path / "nowhere", tmp_path / "hot")) == {"status": "missing"}
        task = task_for(source, tmp_path / "hot")
        Path(task["target"]).write_bytes(b"an earlier content")
        assert stage(task)["status"] == "staged"
        assert Path(task["target"]).read_bytes() == source.read_bytes()

    @pytest.mark.parametrize("there", [True, False])
    def test_an_empty_or_missing_source_folder_is_away_and_no_file_is_missing(
        self, tmp_path: Path, there: bool
    ) -> None:
        if there:
            (tmp_path / "source").mkdir()
        result = stage(task_for(tmp_path / "source" / "a.parquet", tmp_path / "hot"))
        assert result["status"] == "unavailable"
        assert "mount it" in result["reason"]

    def test_a_bad_file_is_judged_where_quarantine_finds_it(self, tmp_path: Path) -> None:
        source = truncate(write_fineweb(tmp_path / "a.parquet", 60))
        task = task_for(source, tmp_path / "hot")
        result = stage(task)
        assert (result["status"], result["reason"]) == ("bad", "truncated")
        assert Path(task["target"]).exists()

    def test_a_receipt_of_a_file_outside_the_source_folder_is_refused(self, tmp_path: Path) -> None:
        source = write_fineweb(tmp_path / "elsewhere" / "a.parquet", 60)
        (tmp_path / "source").mkdir()
        for file in (source, tmp_path / "source" / ".." / "elsewhere" / "a.parquet"):
            task = task_for(source, tmp_path / "hot", root=str(tmp_path / "source"), file=str(file))
            with pytest.raises(UnavailableError, match="does not lie in"):
                stage(task)
        assert not _names(tmp_path / "hot" / "parquet")

    @pytest.mark.parametrize("link", ["file", "folder"])
    def test_a_link_in_the_place_of_a_file_or_its_folder_is_refused(self, tmp_path: Path, link: str) -> None:
        source = write_fineweb(tmp_path / "source" / "sub" / "a.parquet", 60)
        task = task_for(source, tmp_path / "hot", root=str(tmp_path / "source"))
        swapped = source if link == "file" else source.parent
        swapped.rename(tmp_path / "away")
        swapped.symlink_to(tmp_path / "away")
        with pytest.raises(StorageError, match="symbolic link"):
            stage(task)
        assert not _names(tmp_path / "hot" / "parquet")

    def test_what_is_linked_is_what_was_opened_whatever_its_name_leads_to_by_then(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = write_fineweb(tmp_path / "source" / "a.parquet", 60)
        write_fineweb(tmp_path / "secret", 60, seed=2)
        task = task_for(source, tmp_path / "hot", root=str(tmp_path / "source"))
        right, real = source.read_bytes(), os.link

        def swap_first(*where: Any, **options: Any) -> None:
            source.rename(tmp_path / "away")
            source.symlink_to(tmp_path / "secret")
            real(*where, **options)

        monkeypatch.setattr(os, "link", swap_first)
        assert stage(task)["how"] == "link"
        target = Path(task["target"])
        assert not target.is_symlink()
        assert target.read_bytes() == right


def bytes_read(monkeypatch: pytest.MonkeyPatch, file: Path) -> list[int]:
    """Counts what is read of a file, by its inode; grows as it goes."""
    counted: list[int] = []
    inode, real = file.stat().st_ino, DirectReader.chunks

    def chunks(self: DirectReader, buffer: memoryview, end: int | None = None) -> Iterator[memoryview]:
        ours = os.fstat(self._descriptor).st_ino == inode
        for chunk in real(self, buffer, end):
            if ours:
                counted.append(len(chunk))
            yield chunk

    monkeypatch.setattr(DirectReader, "chunks", chunks)
    return counted


@pytest.mark.usefixtures("copying")
class TestResuming:
    PAGES = 20

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        (tmp_path / "a").write_bytes(random.Random(1).randbytes(self.PAGES * PAGE + 100))
        return tmp_path / "a"

    @staticmethod
    def bring(source: Path, *, die_at: int | None = None, sha: str | None = None) -> stage_worker.Brought:
        data = source.read_bytes()
        target = source.with_name("b")

        def progress(_: str, done: int) -> None:
            if die_at is not None and done >= die_at:
                raise Killed

        with source.open("rb") as opened:
            return bring(opened.fileno(), target, Wanted(sha or sha256(data), len(data), 0), progress)

    def killed(self, source: Path, at: int) -> None:
        with pytest.raises(Killed):
            self.bring(source, die_at=at)

    def test_a_killed_copy_goes_on_where_it_ended_and_reads_only_the_rest(
        self, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.killed(source, 11 * PAGE)
        read = bytes_read(monkeypatch, source)
        brought = self.bring(source)
        assert brought.resumed == 11 * PAGE
        assert sum(read) == source.stat().st_size - 11 * PAGE
        assert brought.sha256 == sha256(source.read_bytes()) == sha256((source.parent / "b").read_bytes())
        assert brought.xxh3 == xxhash.xxh3_128_hexdigest(source.read_bytes())
        assert _names(source.parent) == ["a", "b"]

    def test_a_source_that_was_written_to_since_is_copied_anew(self, source: Path) -> None:
        self.killed(source, 11 * PAGE)
        source.write_bytes(random.Random(2).randbytes(source.stat().st_size))
        assert self.bring(source).resumed == 0
        assert source.with_name("b").read_bytes() == source.read_bytes()

    def test_nothing_of_a_longer_file_stays_behind_a_shorter_one(self, source: Path) -> None:
        self.killed(source, 11 * PAGE)
        source.write_bytes(b"short")
        assert self.bring(source).resumed == 0
        assert source.with_name("b").read_bytes() == b"short"

    @pytest.mark.parametrize("spoil", ["flipped", "shorter", "longer", "gone"])
    def test_whatever_became_of_what_was_kept_the_copy_is_right(self, source: Path, spoil: str) -> None:
        self.killed(source, 11 * PAGE)
        part = source.with_name(".part-b")
        match spoil:
            case "flipped":
                data = bytearray(part.read_bytes())
                data[3 * PAGE] ^= 1
                part.write_bytes(data)
            case "shorter":
                os.truncate(part, 3 * PAGE)
            case "gone":
                part.unlink()
            case "longer":
                os.truncate(part, 19 * PAGE)
        assert self.bring(source).sha256 == sha256((source.parent / "b").read_bytes())
        assert (source.parent / "b").read_bytes() == source.read_bytes()
        assert _names(source.parent) == ["a", "b"]

    def test_a_copy_that_ends_up_wrong_leaves_nothing(self, source: Path) -> None:
        assert self.bring(source, sha="0" * 64).sha256 != "0" * 64
        assert _names(source.parent) == ["a"]

    def test_a_full_disk_gives_the_room_back_and_a_read_error_keeps_what_was_copied(
        self, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.pwrite

        def full(descriptor: int, data: memoryview, offset: int) -> int:
            if offset >= 5 * PAGE:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(descriptor, data, offset)

        with monkeypatch.context() as patch, pytest.raises(DiskFullError):
            patch.setattr(os, "pwrite", full)
            self.bring(source)
        assert _names(source.parent) == ["a"]
        reading, inode = os.preadv, source.stat().st_ino

        def broken(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            if os.fstat(descriptor).st_ino == inode and offset >= 5 * PAGE:
                raise OSError(errno.EIO, "Input/output error")
            return reading(descriptor, buffers, offset)

        with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):
            patch.setattr(os, "preadv", broken)
            self.bring(source)
        assert self.bring(source).resumed == 5 * PAGE

    def test_a_copy_stops_when_the_disk_fills_to_its_floor_beside_it(
        self, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[int] = []

        def room(folder: Path, size: int, floor: int) -> None:
            asked.append(size)
            if len(asked) > 3:
                raise DiskFullError("somebody else filled it")

        monkeypatch.setattr(stage_worker, "insist_on_room", room)
        with pytest.raises(DiskFullError):
            self.bring(source)
        assert asked == [source.stat().st_size, 0, 0, 0]
        assert _names(source.parent) == ["a"]

    def test_no_crash_leaves_a_wrong_file_under_the_staged_name(self) -> None:
        def prepare(root: Path) -> None:
            (root / "hot" / "parquet").mkdir(parents=True)
            write_fineweb(root / "a.parquet", 60)

        def run(root: Path) -> None:
            stage(task_for(root / "a.parquet", root / "hot"))

        def invariant(root: Path, crash: Crash) -> None:
            target = root / "hot" / "parquet" / "a-1.parquet"
            assert target.exists() or not crash.complete
            if target.exists():
                assert target.read_bytes() == (root / "a.parquet").read_bytes()

        def at_its_end(root: Path, _: Crash) -> None:
            left = [name for name in _names(root / "hot" / "parquet") if not name.startswith(".tmp-")]
            assert left == ["a-1.parquet"]

        check_crashes(run, lambda root: None, invariant, prepare=prepare, max_states=600)
        check_crashes(run, run, at_its_end, prepare=prepare, max_states=200)
