"""Sealing: all of a checkpoint or none of it, in a format that others read."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crash import Crash, acknowledge, check_crashes
from stoker.checkpoints import seal as seal_module
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.retention import sweep_leftovers
from stoker.checkpoints.seal import CheckpointWriter, Tensor, split, tensor_files
from stoker.store.errors import DataError, StorageError
from support.checkpoint_data import TRAINER_FILES, body_of, seal


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_sealed_checkpoint_is_proven_and_sha256sum_agrees(tmp_path: Path) -> None:
    path = seal(tmp_path, 12)

    assert path.name == "step-000000012"
    assert names(path) == sorted([*TRAINER_FILES, "checkpoint.json", "SHA256SUMS"])
    assert names(tmp_path) == [path.name]
    assert prove_checkpoint(path).verdict == "proven"
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=path, check=True)


def test_a_write_waits_for_no_hash_that_is_late_by_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_given, late = threading.Event(), list[int]()

    class Late:
        def __init__(self) -> None:
            self._digest = hashlib.sha256()

        def update(self, piece: memoryview) -> None:
            if not all_given.wait(5.0):
                late.append(len(piece))
                all_given.set()
            self._digest.update(piece)

        def hexdigest(self) -> str:
            return self._digest.hexdigest()

    def pieces() -> Iterator[bytes]:
        yield from (bytes([number]) * (1 << 20) for number in range(8))
        all_given.set()

    monkeypatch.setattr(seal_module, "hashlib", SimpleNamespace(sha256=Late))
    with CheckpointWriter(tmp_path, 1, "l1") as writer:
        writer.add("model.bin", pieces())
    assert not late, "the write waited for a hash"
    whole = b"".join(bytes([number]) * (1 << 20) for number in range(8))
    assert writer.listed["model.bin"]["sha256"] == hashlib.sha256(whole).hexdigest()


def test_the_body_lists_every_file_but_itself_and_the_sums(tmp_path: Path) -> None:
    body = json.loads((seal(tmp_path, 12) / "checkpoint.json").read_bytes())
    assert set(body["files"]) == set(TRAINER_FILES)
    assert body["v"] == 1
    assert {**body_of(12), "v": 1, "files": body["files"]} == body


def test_safetensors_reads_what_we_wrote(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    arrays = {
        "half": np.arange(6, dtype=np.float16).reshape(2, 3),
        "wide": np.arange(5, dtype=np.int64),
        "single": np.linspace(0, 1, 7, dtype=np.float32),
        'ünïcode "name"': np.array([True, False]),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "scalar": np.array(3.5, dtype=np.float32),
    }
    dtypes = {"float16": "F16", "int64": "I64", "float32": "F32", "bool": "BOOL"}
    tensors = [
        Tensor(name, dtypes[str(a.dtype)], a.shape, memoryview(a.tobytes())) for name, a in arrays.items()
    ]
    with CheckpointWriter(tmp_path, 1, "l1") as writer:
        for file in tensor_files("model", tensors):
            writer.add(*file)
        path = writer.seal(body_of(1)) / "model-00001.safetensors"

    read = numpy.load_file(path)

    assert set(read) == set(arrays)
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert header % 8 == 0


def test_tensors_are_split_over_files_of_limited_size() -> None:
    tensors = [
        Tensor(f"t{i}", "U8", (size,), memoryview(bytes(size))) for i, size in enumerate((4, 4, 5, 20, 1))
    ]
    assert [[tensor.name for tensor in group] for group in split(tensors, 8)] == [
        ["t0", "t1"], ["t2"], ["t3"], ["t4"],
    ]  # fmt: skip


def test_hashes_are_of_the_bytes_handed_over_not_of_what_the_disk_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def rotten(descriptor: int, data: Any, offset: int) -> int:
        changed = bytes(data).replace(b'"rng":1', b'"rng":3')
        return real(descriptor, changed, offset)

    monkeypatch.setattr(os, "pwrite", rotten)
    path = seal(tmp_path, 12)
    monkeypatch.undo()

    proof = prove_checkpoint(path)
    assert (proof.verdict, proof.reason) == ("invalid", "sha256 of trainer.json differs")


def test_sealing_survives_every_crash() -> None:
    def prepare(root: Path) -> None:
        seal(root / "checkpoints", 8)

    def write(root: Path) -> None:
        acknowledge(seal(root / "checkpoints", 16).name)

    def recover(root: Path) -> None:
        sweep_leftovers(root / "checkpoints")

    def invariant(root: Path, crash: Crash) -> None:
        there = set(names(root / "checkpoints"))
        assert {"step-000000008", *crash.acknowledged} <= there <= {"step-000000008", "step-000000016"}
        for name in there:
            assert prove_checkpoint(root / "checkpoints" / name).verdict == "proven"

    report = check_crashes(write, recover, invariant, prepare=prepare, max_states=600)
    assert report.trees > 50


def test_a_seal_without_its_fsyncs_is_found_by_the_crash_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_fsync(temporary: Path, target: Path) -> None:
        os.rename(temporary, target)  # noqa: PTH104 - as the recorder sees it

    monkeypatch.setattr(seal_module, "publish_dir", without_fsync)
    with pytest.raises(AssertionError):
        test_sealing_survives_every_crash()


def test_the_same_checkpoint_sealed_again_is_dropped(tmp_path: Path) -> None:
    first = seal(tmp_path, 12)
    inode = first.stat().st_ino
    assert seal(tmp_path, 12, launch="l2", world_size=2) == first
    assert first.stat().st_ino == inode
    assert names(tmp_path) == [first.name]


@pytest.mark.parametrize("fault", ["other bytes", "other position", "rotten", "empty directory"])
def test_another_checkpoint_of_that_name_stops_the_run_loudly(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "step-000000012"
    if fault == "empty directory":
        path.mkdir()
    else:
        changes: dict[str, Any] = {"position": [0, 5]} if fault == "other position" else {}
        seal(tmp_path, 12, files={"trainer.json": b"{}"} if fault == "other bytes" else {}, **changes)
    if fault == "rotten":
        (path / "trainer.json").write_bytes(b'{"rng":2}\n')
    before = {name: (path / name).read_bytes() for name in names(path)}

    with pytest.raises(DataError, match="step-000000012 is there already"):
        seal(tmp_path, 12, launch="l2")

    assert {name: (path / name).read_bytes() for name in names(path)} == before
    assert names(tmp_path) == [path.name]


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("the tensors are gone")

    with pytest.raises(RuntimeError), CheckpointWriter(tmp_path, 1, "l1") as writer:
        writer.add("model.bin", chunks())
    assert names(tmp_path) == []


def test_what_a_killed_launch_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, 5, "l1")
    writer.add("a", [b"x"])
    sealed = seal(tmp_path, 4)
    assert sweep_leftovers(tmp_path) == [".tmp-step-l1-000000005"]
    assert names(tmp_path) == [sealed.name]
    assert sweep_leftovers(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", ["../x", "a/b", "checkpoint.json", "SHA256SUMS", "", ".hidden", "a\nb"])
def test_names_that_would_leave_the_directory_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a file"):
        CheckpointWriter(tmp_path, 1, "l1").add(name, [b""])


@pytest.mark.parametrize("missing", ["tokens", "position", "timeline", "plan_head"])
def test_a_body_without_what_readers_need_is_not_sealed(tmp_path: Path, missing: str) -> None:
    body = body_of(1)
    del body[missing]
    with pytest.raises(DataError, match=missing), CheckpointWriter(tmp_path, 1, "l1") as writer:
        writer.seal(body)
    assert names(tmp_path) == []


@pytest.mark.root
def test_a_full_disk_is_a_storage_error_and_leaves_room_again(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], check=True)
    try:
        with pytest.raises(StorageError, match="free space") as caught:
            seal(tmp_path, 12, files={"model-00002.safetensors": bytes(1 << 20)})
        assert caught.value.exit_code == 74
        assert names(tmp_path) == []
        assert prove_checkpoint(seal(tmp_path, 12)).verdict == "proven"
    finally:
        subprocess.run(["umount", tmp_path], check=True)
