"""Copies to the mirror and back: whole or not there, after every crash; wrong ones found and replaced."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from crash import Crash, CrashFound, check_crashes
from stoker.checkpoints.mirror import mirror_worker as mirror_copy
from stoker.checkpoints.mirror.layout import Mirrored, list_mirror, require_ours
from stoker.checkpoints.mirror.mirror_worker import SourceBad, copy_checkpoint, copy_file, give_up, main
from stoker.checkpoints.proof import Proof, prove_checkpoint
from stoker.checkpoints.retention import reading, sweep_leftovers
from stoker.store.errors import DataError, StorageError, UnavailableError
from stoker.store.files import sweep_temporaries
from stoker.store.layout import WarmLayout
from support.checkpoint_data import seal

STEP = "step-000000010"


def nothing(_: int) -> None:
    pass


def do(task: dict[str, object]) -> dict[str, Any]:
    """What the worker makes of a task; it is run as a process in the integration tests."""
    return main(task, lambda kind, **fields: None)  # type: ignore[arg-type]


def digest_of(path: Path) -> str:
    digest = prove_checkpoint(path).digest
    assert digest is not None
    return digest


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def tree(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


STATES = pytest.mark.parametrize("states", [60, pytest.param(700, marks=pytest.mark.long)])


class Place:
    """A state disk and a warm disk below one directory."""

    def __init__(self, root: Path) -> None:
        self.checkpoints = root / "state" / "checkpoints"
        self.warm = WarmLayout(root / "warm")
        self.mirror = self.warm.checkpoints("main")

    def seal(self, step: int = 10, **changes: object) -> Path:
        return seal(self.checkpoints, step, files={"timelines.jsonl": b""}, **changes)

    def name(self, source: Path) -> str:
        body = prove_checkpoint(source).body
        assert body is not None
        return Mirrored.of(body.raw, digest_of(source)).name

    def copy(self, source: Path, name: str = "", digest: str = "") -> bool:
        digest, name = digest or digest_of(source), name or self.name(source)
        return copy_checkpoint(source, self.mirror / name, digest, nothing)

    def fetch(self, name: str) -> dict[str, Any]:
        return do(self.task("fetch", name=name, checkpoints=str(self.checkpoints), logs=[]))

    def sync(self, run_id: str, **copy: object) -> dict[str, Any]:
        return do(self.task("sync", run_id=run_id, copy=copy or None, prune=[]))

    def task(self, verb: str, **words: object) -> dict[str, object]:
        common = {"warm": str(self.warm.root), "run": "main", "owner": "tiny", "expected": False}
        return {**common, "verb": verb, **words}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "warm").mkdir()
    return Place(tmp_path)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def test_a_copy_is_the_same_proven_and_leaves_nothing_else(place: Place) -> None:
    source = place.seal()
    for _ in range(2):
        assert not place.copy(source)
        (one,) = list_mirror(place.mirror)
        assert one.name == f"t0/{STEP}-{digest_of(source)[:8]}"
        assert tree(place.mirror / one.name) == tree(source)
        assert names(place.mirror / "t0") == [Path(one.name).name]


def test_two_incarnations_of_a_step_lie_side_by_side(place: Place, tmp_path: Path) -> None:
    first, second = place.seal(), seal(tmp_path / "again", 10, loss=3.25)
    on_another = seal(tmp_path / "other", 10, timeline=1)
    for path in (first, second, on_another):
        place.copy(path)
    assert len(list_mirror(place.mirror)) == 3


def test_an_interrupted_copy_goes_on_with_the_files_it_had_finished(place: Place) -> None:
    source = place.seal()
    digest = digest_of(source)
    temporary = place.mirror / "t0" / f".tmp-{STEP}-{digest[:8]}"
    temporary.mkdir(parents=True)
    shutil.copy(source / "model-00001.safetensors", temporary)
    finished = (temporary / "model-00001.safetensors").stat().st_ino
    (temporary / "optimizer-00001.safetensors").write_bytes(b"half")
    other = place.mirror / "t0" / ".tmp-step-000000005-00000000"
    other.mkdir()
    place.copy(source)
    copy = place.mirror / place.name(source)
    assert (copy / "model-00001.safetensors").stat().st_ino == finished
    assert tree(copy) == tree(source)
    assert names(place.mirror / "t0") == [f"{STEP}-{digest[:8]}"]


def test_a_finished_file_that_did_not_become_durable_is_found_and_written_again(place: Place) -> None:
    source = place.seal()
    temporary = place.mirror / "t0" / f".tmp-{STEP}-{digest_of(source)[:8]}"
    temporary.mkdir(parents=True)
    size = (source / "model-00001.safetensors").stat().st_size
    (temporary / "model-00001.safetensors").write_bytes(bytes(size))
    with pytest.raises(StorageError, match="does not read as it was written"):
        place.copy(source)
    place.copy(source)
    assert tree(place.mirror / place.name(source)) == tree(source)


def test_a_wrong_copy_is_replaced_once_it_is_not_read(place: Place) -> None:
    source = place.seal()
    place.copy(source)
    copy = place.mirror / place.name(source)
    flip(copy / "trainer.json")
    with reading(copy), pytest.raises(StorageError, match="is being read"):
        place.copy(source)
    assert place.copy(source)
    assert tree(copy) == tree(source)
    assert not place.copy(source)
    assert names(copy.parent) == [copy.name]


@pytest.mark.parametrize("kind", ["file", "link", "link to nowhere"])
def test_what_is_no_directory_under_a_copys_name_does_not_stop_the_mirror(
    place: Place, tmp_path: Path, kind: str
) -> None:
    source, elsewhere = place.seal(), seal(tmp_path / "elsewhere", 5)
    copy, before = place.mirror / place.name(source), tree(elsewhere)
    copy.parent.mkdir(parents=True)
    for path in (copy, copy.with_name(".tmp-step-000000005-00000000")):
        if kind == "file":
            path.write_text("a note")
        else:
            path.symlink_to(elsewhere if kind == "link" else "nowhere")
    assert place.copy(source)
    assert names(copy.parent) == [copy.name]
    assert (tree(copy), tree(elsewhere)) == (tree(source), before)


@pytest.mark.parametrize("name", ["checkpoint.json", "model-00001.safetensors"])
def test_a_source_that_rotted_since_its_proof_is_not_copied(place: Place, name: str) -> None:
    source = place.seal()
    digest, copied = digest_of(source), place.name(source)
    flip(source / name)
    with pytest.raises(SourceBad, match=name):
        place.copy(source, copied, digest)
    assert list_mirror(place.mirror) == []


def test_a_source_that_lacks_a_file_is_not_copied(place: Place) -> None:
    source = place.seal()
    digest, copied = digest_of(source), place.name(source)
    (source / "SHA256SUMS").unlink()
    with pytest.raises(SourceBad, match="SHA256SUMS is missing"):
        place.copy(source, copied, digest)


def test_a_fetched_checkpoint_is_the_same_under_its_steps_name(place: Place) -> None:
    source = place.seal()
    before, copied = tree(source), place.name(source)
    place.copy(source)
    shutil.rmtree(source)
    fetched = place.fetch(copied)
    assert (fetched["state"], fetched["proof"]["verdict"]) == ("fetched", "proven")
    assert tree(place.checkpoints / STEP) == before
    assert place.fetch(copied)["state"] == "fetched"  # it is there already
    assert names(place.checkpoints) == [STEP]


def test_a_fetch_replaces_nothing(place: Place, tmp_path: Path) -> None:
    other = seal(tmp_path / "other", 10, timeline=1)
    place.copy(other)
    mine = place.seal()
    before = tree(mine)
    with pytest.raises(DataError, match="nothing is replaced"):
        place.fetch(place.name(other))
    assert tree(mine) == before


@pytest.mark.parametrize("name", ["model-00001.safetensors", "SHA256SUMS", "checkpoint.json"])
def test_a_rotten_copy_is_convicted_and_never_fetched(place: Place, name: str) -> None:
    source = place.seal()
    place.copy(source)
    copied = place.name(source)
    shutil.rmtree(source)
    flip(place.mirror / copied / name)
    fetched = place.fetch(copied)
    assert fetched["state"] == "bad"
    assert fetched["reason"]
    assert names(place.checkpoints) == []
    assert list_mirror(place.mirror) == []
    assert names(place.mirror / "t0") == []
    assert place.fetch(copied)["state"] == "gone"


def test_a_full_warm_says_so_with_the_numbers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    source = place.seal()
    real = os.statvfs

    def full(path: Path) -> os.statvfs_result:
        found = list(real(path))
        found[4] = 0  # f_bavail
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", full)
    with pytest.raises(StorageError, match=r"0 bytes free, \d+ needed"):
        place.copy(source)


def test_what_is_given_up_goes_unless_it_is_being_read(place: Place) -> None:
    sources = [place.seal(step) for step in (10, 20)]
    copies = [place.name(source) for source in sources]
    for source in sources:
        place.copy(source)
    with reading(place.mirror / copies[0]):
        assert give_up(place.mirror, copies) == [copies[1]]
    assert [one.name for one in list_mirror(place.mirror)] == [copies[0]]
    assert give_up(place.mirror, copies) == copies
    assert names(place.mirror / "t0") == []


def test_a_file_is_brought_whole_and_only_as_the_record_has_them(tmp_path: Path) -> None:
    source, target = tmp_path / "heldout.bin", tmp_path / "copy.bin"
    source.write_bytes(b"windows")
    with pytest.raises(SourceBad):
        copy_file(source, target, nothing, "0" * 64)
    assert copy_file(source, target, nothing, hashlib.sha256(b"windows").hexdigest())
    assert target.read_bytes() == b"windows"
    source.unlink()
    assert not copy_file(source, target, nothing, "0" * 64)
    assert names(tmp_path) == ["copy.bin"]


class TestCrashes:
    """Whatever bears a name on either disk is whole, after every crash."""

    @staticmethod
    def prepare(root: Path) -> None:
        (root / "warm").mkdir()
        Place(root).seal()

    @staticmethod
    def copy(root: Path) -> None:
        place = Place(root)
        place.copy(place.checkpoints / STEP)

    @staticmethod
    def whole(root: Path, crash: Crash) -> None:
        place = Place(root)
        copies = list_mirror(place.mirror)
        assert len(copies) == 1 or not crash.complete
        for one in copies:
            assert prove_checkpoint(place.mirror / one.name).verdict == "proven"
        assert prove_checkpoint(place.checkpoints / STEP).verdict == "proven"

    @STATES
    def test_a_copy_is_whole_or_not_there(self, states: int) -> None:
        check_crashes(self.copy, lambda root: None, self.whole, prepare=self.prepare, max_states=states)

    @STATES
    def test_a_copy_begun_before_a_crash_is_finished_after_it(self, states: int) -> None:
        def recover(root: Path) -> None:
            for _ in range(2):  # what did not become durable costs one more try
                try:
                    self.copy(root)
                except StorageError:
                    continue
                return
            raise AssertionError("two tries were not enough")

        def there(root: Path, crash: Crash) -> None:
            self.whole(root, crash)
            assert len(list_mirror(Place(root).mirror)) == 1
            assert names(Place(root).mirror / "t0") == [Path(list_mirror(Place(root).mirror)[0].name).name]

        check_crashes(self.copy, recover, there, prepare=self.prepare, max_states=states)

    def test_a_copy_whose_files_are_not_synced_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def rename_only(temporary: Path, target: Path) -> None:
            os.rename(temporary, target)  # noqa: PTH104 - recorded

        monkeypatch.setattr(mirror_copy, "publish_dir", rename_only)
        monkeypatch.setattr("stoker.store.direct.os.fsync", lambda fd: None)
        with pytest.raises(CrashFound):
            check_crashes(self.copy, lambda root: None, self.whole, prepare=self.prepare, max_states=300)

    def test_a_fetch_leaves_a_whole_checkpoint_or_none(self) -> None:
        def prepare(root: Path) -> None:
            self.prepare(root)
            self.copy(root)
            shutil.rmtree(Place(root).checkpoints / STEP)

        def fetch(root: Path) -> None:
            place = Place(root)
            place.fetch(list_mirror(place.mirror)[0].name)

        def fetched(root: Path, crash: Crash) -> None:
            place = Place(root)
            assert names(place.checkpoints) in ([], [STEP])
            if crash.complete:
                assert names(place.checkpoints) == [STEP]
            for name in names(place.checkpoints):
                assert prove_checkpoint(place.checkpoints / name).verdict == "proven"
            assert len(list_mirror(place.mirror)) == 1

        check_crashes(
            fetch,
            lambda root: sweep_leftovers(Place(root).checkpoints),
            fetched,
            prepare=prepare,
            max_states=700,
        )

    def test_a_log_is_the_earlier_copy_or_the_later_one(self) -> None:
        def prepare(root: Path) -> None:
            (root / "mirror").mkdir()
            (root / "metrics.jsonl").write_bytes(b"{}\n{}\n")
            (root / "mirror" / "metrics-r.jsonl").write_bytes(b"{}\n")

        def bring(root: Path) -> None:
            assert copy_file(root / "metrics.jsonl", root / "mirror" / "metrics-r.jsonl", nothing)

        def one_of_both(root: Path, crash: Crash) -> None:
            found = (root / "mirror" / "metrics-r.jsonl").read_bytes()
            assert found == b"{}\n{}\n" or (found == b"{}\n" and not crash.complete)
            assert names(root / "mirror") == ["metrics-r.jsonl"]

        check_crashes(bring, lambda root: sweep_temporaries(root / "mirror"), one_of_both, prepare=prepare)

    def test_giving_up_leaves_a_whole_copy_or_none(self) -> None:
        def prepare(root: Path) -> None:
            self.prepare(root)
            self.copy(root)

        def give_up_all(root: Path) -> None:
            place = Place(root)
            give_up(place.mirror, [one.name for one in list_mirror(place.mirror)])

        def whole(root: Path, crash: Crash) -> None:
            place = Place(root)
            copies = list_mirror(place.mirror)
            assert not (crash.complete and copies)
            for one in copies:
                assert prove_checkpoint(place.mirror / one.name).verdict == "proven"

        check_crashes(
            give_up_all,
            lambda root: mirror_copy.sweep(Place(root).mirror, sparing=root),
            whole,
            prepare=prepare,
        )


class TestWorker:
    """What the worker does by its verbs."""

    def test_the_newest_copy_of_timelines_comes_with_the_list(self, place: Place) -> None:
        place.copy(place.seal())
        later = seal(place.checkpoints, 20, timeline=1, files={"timelines.jsonl": b"{}\n"})
        place.copy(later)
        newest = place.mirror / place.name(later)
        listed = place.sync("ab" * 16)
        assert (len(listed["copies"]), listed["foreign"], listed["timelines"]) == (2, [], "{}\n")
        flip(newest / "timelines.jsonl")
        assert place.sync("ab" * 16)["timelines"] == ""

    def test_copies_of_another_run_are_told_apart(self, place: Place) -> None:
        place.copy(place.seal())
        listed = place.sync("another")
        assert (listed["copies"], listed["foreign"]) == ([], ["ab" * 16])

    def test_an_unmounted_or_foreign_warm_is_refused(self, place: Place) -> None:
        with pytest.raises(UnavailableError, match="mount the disk"):
            require_ours(place.warm, place.mirror, "tiny", expected=True)
        place.warm.owner_lock.write_text('{"purpose":"pipeline tiny-2 (state /s)"}\n')
        with pytest.raises(UnavailableError, match="is another's: pipeline tiny-2"):
            require_ours(place.warm, place.mirror, "tiny", expected=False)
        place.warm.owner_lock.write_text('{"purpose":"pipeline tiny (state /elsewhere)"}\n')
        require_ours(place.warm, place.mirror, "tiny", expected=False)
        shutil.rmtree(place.warm.root)
        with pytest.raises(UnavailableError, match="mount the disk"):
            require_ours(place.warm, place.mirror, "tiny", expected=False)

    def test_heldout_windows_and_logs_go_along_and_come_back(self, place: Place, tmp_path: Path) -> None:
        heldout = tmp_path / "heldout.bin"
        heldout.write_bytes(b"windows")
        rows = tmp_path / "metrics.jsonl"
        rows.write_bytes(b"{}\n")
        later = tmp_path / "heldout-long.bin"
        later.write_bytes(b"longer windows")
        held, longer = (
            {"sha256": hashlib.sha256(text).hexdigest(), "windows": 1}
            for text in (b"windows", b"longer windows")
        )
        source = place.seal(run_record={"heldout": held, "heldouts": [{**longer, "file": later.name}]})
        copied = place.name(source)
        told = place.sync(
            "ab" * 16,
            source=str(source),
            name=place.name(source),
            digest=digest_of(source),
            heldouts=[[str(heldout), held["sha256"]], [str(later), longer["sha256"]]],
            logs=[str(rows), str(tmp_path / "none.jsonl")],
        )
        assert (told["replaced"], len(told["copies"]), told["gone"]) == (False, 1, [])
        later.unlink()
        rows.unlink()
        shutil.rmtree(source)
        fetch = place.task(
            "fetch",
            name=copied,
            checkpoints=str(place.checkpoints),
            logs=[str(rows), str(tmp_path / "none.jsonl")],
            heldout=str(heldout),
        )
        fetched = do(fetch)
        assert (fetched["state"], fetched["heldout"]) == ("fetched", "brought")
        assert (heldout.read_bytes(), later.read_bytes()) == (b"windows", b"longer windows")
        assert (fetched["logs"], rows.read_bytes()) == ([str(rows)], b"{}\n")
        proof = fetched["proof"]
        assert isinstance(proof, dict)
        assert proof["body"]["step"] == 10
        assert do(fetch)["heldout"] == "there"
        heldout.write_bytes(b"rotten!")
        assert (do(fetch)["heldout"], heldout.read_bytes()) == ("brought", b"windows")


def test_a_copy_that_reads_differently_is_not_published(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = place.seal()
    copied, digest = place.name(source), digest_of(source)
    monkeypatch.setattr(mirror_copy, "prove_checkpoint", lambda *a, **k: Proof("unreadable", "EIO", False))
    with pytest.raises(StorageError, match="EIO"):
        place.copy(source, copied, digest)
    assert list_mirror(place.mirror) == []
