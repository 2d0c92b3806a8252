"""Moving sets between hot and warm: only what is proven gets a name or leaves, whenever it is cut off."""

from __future__ import annotations

import hashlib
import mmap
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import stoker.shards.move.moving
from crash.checker import Crash, CrashFound, check_crashes
from stoker.shards.build.build_worker import main
from stoker.shards.format.proof import prove_set
from stoker.shards.move.moving import Identity, Moved, copy_set, evict_set
from stoker.store.errors import StorageError, UnavailableError
from support.builds import Recorder, build_task, set_bytes, small_tokenizer
from support.text import documents, write_parquet

STATES = 60


def quiet(_: int) -> None:
    """Nobody listens."""


class Site:
    """A hot and a warm disk, the set in one or both."""

    def __init__(self, built: Path, key: str) -> None:
        self.built, self.key = built, key
        self.bytes = set_bytes(built)
        manifest = hashlib.sha256(self.bytes["manifest.json"]).hexdigest()
        self.identity = Identity(key, manifest, "20261121T120000Z-1a2b3c4d")

    def hot(self, root: Path) -> Path:
        return root / "hot" / "shards" / "prose" / self.key[:16]

    def warm(self, root: Path) -> Path:
        return root / "warm" / "shards" / "prose" / self.key[:16]

    def put(self, directory: Path) -> None:
        shutil.copytree(self.built, directory)

    def sync(self, root: Path) -> Moved:
        return copy_set(self.hot(root), self.warm(root), root / "warm" / ".trash", self.identity, quiet)

    def hydrate(self, root: Path) -> Moved:
        return copy_set(self.warm(root), self.hot(root), root / "hot" / ".trash", self.identity, quiet)

    def evict(self, root: Path) -> Moved:
        return evict_set(self.hot(root), self.warm(root), root / "hot" / ".trash", self.identity, quiet)

    def is_whole(self, directory: Path) -> bool:
        return prove_set(directory, key=self.key).verdict == "proven" and set_bytes(directory) == self.bytes


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    home = tmp_path_factory.mktemp("moving")
    parquet = write_parquet(home / "tiny.parquet", documents(24), row_group=8)
    task = build_task(home, parquet, small_tokenizer(home / "tokenizer.json"), shard_tokens=2000)
    assert main(task, Recorder())["status"] == "published"
    return Site(Path(task["target"]), task["key"])


def flip(directory: Path, name: str = "train-00000.bin") -> None:
    data = bytearray((directory / name).read_bytes())
    data[len(data) // 2] ^= 1
    (directory / name).write_bytes(bytes(data))


def test_a_copy_is_the_set_and_a_second_try_finds_it(site: Site, tmp_path: Path) -> None:
    site.put(site.hot(tmp_path))
    first = site.sync(tmp_path)
    assert (first.status, first.bytes) == ("copied", sum(map(len, set_bytes_all(site.built))))
    assert site.is_whole(site.warm(tmp_path))
    was = site.warm(tmp_path).stat().st_ino
    assert site.sync(tmp_path).status == "existed"
    assert site.warm(tmp_path).stat().st_ino == was


def set_bytes_all(directory: Path) -> list[bytes]:
    return [file.read_bytes() for file in directory.iterdir()]


def test_a_wrong_copy_is_replaced_and_what_had_it_mapped_reads_on(site: Site, tmp_path: Path) -> None:
    site.put(site.warm(tmp_path))
    site.put(site.hot(tmp_path))
    flip(site.hot(tmp_path))
    file = site.hot(tmp_path) / "train-00000.bin"
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        before = bytes(mapped)
        assert site.hydrate(tmp_path).status == "copied"
        assert bytes(mapped) == before
    assert site.is_whole(site.hot(tmp_path))
    assert not list((tmp_path / "hot" / ".trash").iterdir())


@pytest.mark.parametrize("name", ["train-00000.bin", "SHA256SUMS", "manifest.json"])
def test_what_is_wrong_is_not_copied_and_is_named(site: Site, tmp_path: Path, name: str) -> None:
    site.put(site.hot(tmp_path))
    flip(site.hot(tmp_path), name)
    moved = site.sync(tmp_path)
    assert moved.status == "bad_source"
    assert name in moved.reason
    assert not list(site.warm(tmp_path).parent.iterdir())


def test_a_set_with_a_file_gone_is_bad_and_one_that_is_gone_is_missing(site: Site, tmp_path: Path) -> None:
    site.put(site.hot(tmp_path))
    (site.hot(tmp_path) / "val-00000.idx").unlink()
    assert site.sync(tmp_path).status == "bad_source"
    shutil.rmtree(site.hot(tmp_path))
    assert site.sync(tmp_path).status == "missing"


def test_another_sets_manifest_is_not_the_one_on_record(site: Site, tmp_path: Path) -> None:
    site.put(site.hot(tmp_path))
    other = Identity(site.key, "0" * 64, "x")
    moved = copy_set(site.hot(tmp_path), site.warm(tmp_path), tmp_path / ".trash", other, quiet)
    assert moved.status == "bad_source"
    assert "on record is 0000" in moved.reason


def test_a_disk_that_spoils_what_is_written_convicts_nothing(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put(site.hot(tmp_path))
    copy = stoker.shards.move.moving.copy

    def spoiled(source: Path, target: Path, progress: Callable[[int], None]) -> None:
        copy(source, target, progress)
        if target.name == "train-00000.bin":
            flip(target.parent)

    monkeypatch.setattr(stoker.shards.move.moving, "copy", spoiled)
    with pytest.raises(StorageError, match="what was copied is right; check both disks"):
        site.sync(tmp_path)
    assert not list(site.warm(tmp_path).parent.iterdir())


def test_a_set_leaves_hot_only_when_its_copy_is_proven(site: Site, tmp_path: Path) -> None:
    site.put(site.hot(tmp_path))
    assert site.evict(tmp_path).status == "unreadable_copy"
    site.put(site.warm(tmp_path))
    flip(site.warm(tmp_path))
    assert site.evict(tmp_path).status == "bad_copy"
    assert site.is_whole(site.hot(tmp_path))
    shutil.rmtree(site.warm(tmp_path))
    site.put(site.warm(tmp_path))
    assert site.evict(tmp_path).status == "evicted"
    assert not site.hot(tmp_path).exists()
    assert not list((tmp_path / "hot" / ".trash").iterdir())
    assert site.evict(tmp_path).status == "evicted"


def test_an_eviction_cut_off_after_its_rename_is_finished_or_taken_back(site: Site, tmp_path: Path) -> None:
    trash = tmp_path / "hot" / ".trash" / f"{site.key[:16]}-earlier"
    site.put(trash)
    site.put(site.warm(tmp_path))
    assert site.evict(tmp_path).status == "evicted"
    assert not trash.exists()
    site.put(trash)
    flip(site.warm(tmp_path))
    site.hot(tmp_path).parent.mkdir(parents=True)
    assert site.evict(tmp_path).status == "bad_copy"
    assert site.is_whole(site.hot(tmp_path))
    site.hot(tmp_path).rename(trash)
    (trash / "train-00000.bin").unlink()  # it was being removed
    assert site.evict(tmp_path).status == "lost"
    shutil.rmtree(site.warm(tmp_path))
    with pytest.raises(StorageError, match="mount the warm disk"):
        site.evict(tmp_path)


def test_nothing_is_written_where_another_disk_is_mounted_meanwhile(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put(site.hot(tmp_path))
    lock = tmp_path / "warm" / ".stoker-owner.lock"
    lock.parent.mkdir()
    lock.touch()
    owner = {"path": str(lock), "device": lock.stat().st_dev, "inode": lock.stat().st_ino}
    marked = replace(site.identity, disks=(owner,))
    warm, trash = site.warm(tmp_path), tmp_path / ".trash"
    copy = stoker.shards.move.moving.copy

    def unmounted(source: Path, target: Path, progress: Callable[[int], None]) -> None:
        copy(source, target, progress)
        lock.unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(stoker.shards.move.moving, "copy", unmounted)
        with pytest.raises(UnavailableError, match="mount the disk again"):
            copy_set(site.hot(tmp_path), warm, trash, marked, quiet)
    assert not warm.exists()
    shutil.rmtree(warm.parent)
    for move in (copy_set, evict_set):
        with pytest.raises(UnavailableError):
            move(site.hot(tmp_path), warm, trash, marked, quiet)
    assert not warm.parent.exists()
    assert site.is_whole(site.hot(tmp_path))


class TestCutOff:
    def test_a_copy_is_made_whole_by_another_try_and_never_seen_half(self, site: Site) -> None:
        def again(root: Path) -> None:
            assert not site.warm(root).exists() or site.is_whole(site.warm(root))
            assert site.sync(root).status in ("copied", "existed")

        def whole(root: Path, _: Crash) -> None:
            assert site.is_whole(site.warm(root))
            assert site.is_whole(site.hot(root))
            assert [each.name for each in site.warm(root).parent.iterdir()] == [site.key[:16]]

        report = check_crashes(
            site.sync, again, whole, prepare=lambda root: site.put(site.hot(root)), max_states=STATES, seed=1
        )
        assert report.trees > 20

    def test_replacing_a_wrong_copy_ends_in_a_right_one(self, site: Site) -> None:
        def prepare(root: Path) -> None:
            site.put(site.warm(root))
            site.put(site.hot(root))
            (site.hot(root) / "val-00000.idx").unlink()

        def whole(root: Path, _: Crash) -> None:
            assert site.is_whole(site.hot(root))

        report = check_crashes(site.hydrate, site.hydrate, whole, prepare=prepare, max_states=STATES, seed=2)
        assert report.trees > 20

    def test_an_eviction_leaves_one_whole_set_at_every_moment(self, site: Site) -> None:
        def prepare(root: Path) -> None:
            site.put(site.hot(root))
            site.put(site.warm(root))

        def again(root: Path) -> None:
            assert site.is_whole(site.warm(root))
            assert not site.hot(root).exists() or site.is_whole(site.hot(root))
            assert site.evict(root).status == "evicted"

        def gone(root: Path, _: Crash) -> None:
            assert not site.hot(root).exists()
            assert not list((root / "hot" / ".trash").iterdir())

        assert check_crashes(site.evict, again, gone, prepare=prepare, max_states=STATES, seed=3).trees > 5

    def test_a_name_given_before_the_bytes_are_durable_would_be_found(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def careless(source: Path, target: Path, _: Callable[[int], None]) -> None:
            target.write_bytes(source.read_bytes())

        monkeypatch.setattr(stoker.shards.move.moving, "copy", careless)

        def untouched(root: Path) -> None:
            assert not site.warm(root).exists() or site.is_whole(site.warm(root))

        with pytest.raises(CrashFound):
            check_crashes(
                site.sync,
                untouched,
                lambda root, crash: None,
                prepare=lambda root: site.put(site.hot(root)),
                max_states=300,
                seed=4,
            )
