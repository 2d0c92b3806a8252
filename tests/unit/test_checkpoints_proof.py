"""Proof: one wrong bit anywhere is found, and what cannot be read is never convicted."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from stoker.checkpoints import proof as proof_module
from stoker.checkpoints.format import read_sums
from stoker.checkpoints.proof import prove_checkpoint
from stoker.store.direct import FileHash, hash_file
from stoker.store.errors import DataError, StorageError
from support.checkpoint_data import TRAINER_FILES, seal

ALL_FILES = (*TRAINER_FILES, "checkpoint.json", "SHA256SUMS")


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)


def refuse_o_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch it on as on overlays and older tmpfs: not at all."""
    real = fcntl.fcntl

    def without(descriptor: int, command: int, value: int = 0) -> int:
        if command == fcntl.F_SETFL and value & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, command, value)

    monkeypatch.setattr(fcntl, "fcntl", without)


@pytest.mark.parametrize("name", [name for name in ALL_FILES if name != "plan.jsonl"])
@pytest.mark.parametrize("cached", [False, True], ids=["past the cache", "o_direct refused"])
def test_one_flipped_bit_in_any_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, cached: bool
) -> None:
    path = seal(tmp_path, 12)
    if cached:
        refuse_o_direct(monkeypatch)
    whole = (path / name).read_bytes()
    for bit in range(0, len(whole) * 8, 61):
        flip(path / name, bit)
        proof = prove_checkpoint(path)
        assert proof.verdict == "invalid", (name, bit)
        assert proof.reason
        (path / name).write_bytes(whole)
    proof = prove_checkpoint(path)
    assert (proof.verdict, proof.cached) == ("proven", cached)


def test_a_sums_file_that_names_a_file_twice_or_ends_torn_is_refused(tmp_path: Path) -> None:
    data = (seal(tmp_path, 12) / "SHA256SUMS").read_bytes()
    first = data.splitlines(keepends=True)[0]
    for changed in (data + first, data[:-1], data + b"\n", data.replace(b"  ", b" *", 1), data.upper()):
        with pytest.raises(DataError):
            read_sums(changed)


def test_no_flipped_bit_in_the_sums_reads_as_the_same(tmp_path: Path) -> None:
    data = (seal(tmp_path, 12) / "SHA256SUMS").read_bytes()
    whole = read_sums(data)
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(DataError):
            assert read_sums(bytes(changed)) != whole


@pytest.mark.parametrize("name", ALL_FILES)
def test_a_missing_file_is_found_and_named(tmp_path: Path, name: str) -> None:
    path = seal(tmp_path, 12)
    (path / name).unlink()
    proof = prove_checkpoint(path)
    assert (proof.verdict, proof.reason) == ("invalid", f"{name} is missing")


@pytest.mark.parametrize("name", ALL_FILES)
@pytest.mark.parametrize("deep", [False, True])
def test_a_truncated_or_grown_file_is_found_without_reading_it(tmp_path: Path, name: str, deep: bool) -> None:
    path = seal(tmp_path, 12, files={"plan.jsonl": b"{}\n"})
    whole = (path / name).read_bytes()
    for data in (whole[:-1], whole + b"\0", b""):
        (path / name).write_bytes(data)
        proof = prove_checkpoint(path, deep=deep)
        assert proof.verdict == "invalid"
        assert name in proof.reason


def test_a_shard_swapped_in_from_another_step_is_found(tmp_path: Path) -> None:
    older, newer = seal(tmp_path, 12), seal(tmp_path, 13)
    shutil.copy(older / "model-00001.safetensors", newer / "model-00001.safetensors")
    proof = prove_checkpoint(newer)
    assert (proof.verdict, proof.reason) == ("invalid", "sha256 of model-00001.safetensors differs")


def test_a_checkpoint_under_another_steps_name_is_found(tmp_path: Path) -> None:
    path = seal(tmp_path, 12).rename(tmp_path / "step-000000099")
    assert prove_checkpoint(path).verdict == "invalid"


def test_two_files_swapped_within_a_checkpoint_are_found(tmp_path: Path) -> None:
    path = seal(tmp_path, 12)
    model, optimizer = path / "model-00001.safetensors", path / "optimizer-00001.safetensors"
    one, other = model.read_bytes(), optimizer.read_bytes()
    model.write_bytes(other)
    optimizer.write_bytes(one)
    assert prove_checkpoint(path).verdict == "invalid"


def test_files_no_list_names_are_reported_and_never_opened(tmp_path: Path) -> None:
    path = seal(tmp_path, 12)
    os.mkfifo(path / "fifo")  # opening it would hang
    (path / "sub").mkdir()
    (path / "sub" / "more").write_text("x")
    (path / "link").symlink_to("/etc/passwd")
    proof = prove_checkpoint(path)
    assert (proof.verdict, proof.extra) == ("proven", ("fifo", "link", "sub"))


def test_links_and_paths_outside_are_refused(tmp_path: Path) -> None:
    path = seal(tmp_path, 12)
    target = tmp_path / "elsewhere"
    (path / "trainer.json").rename(target)
    (path / "trainer.json").symlink_to(target)
    assert prove_checkpoint(path).reason == "trainer.json is not a regular file"

    (path / "trainer.json").unlink()
    for name in ("SHA256SUMS", "checkpoint.json"):
        text = (path / name).read_text().replace("trainer.json", "../elsewhere")
        (path / name).write_text(text)
    assert prove_checkpoint(path).verdict == "invalid"

    (tmp_path / "alias").symlink_to(path)
    assert prove_checkpoint(tmp_path / "alias").verdict == "invalid"


def test_a_checkpoint_that_is_not_there_now_is_unreadable_not_invalid(tmp_path: Path) -> None:
    assert prove_checkpoint(tmp_path / "gone" / "step-000000012").verdict == "unreadable"


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOENT, errno.ESTALE])
def test_a_failed_read_convicts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    path = seal(tmp_path, 12)

    def failing(file: Path, **options: object) -> FileHash:
        if file.name == "optimizer-00001.safetensors":
            if number == errno.ENOENT:
                raise FileNotFoundError(number, os.strerror(number), str(file))
            raise StorageError(f"cannot read {file}: {os.strerror(number)}", number)
        return hash_file(file)

    monkeypatch.setattr(proof_module, "hash_file", failing)
    proof = prove_checkpoint(path)
    assert proof.verdict == "unreadable"
    assert "optimizer-00001.safetensors" in proof.reason


def test_a_file_that_reads_differently_each_time_is_not_convicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = seal(tmp_path, 12)
    readings = iter("ab")

    def flickering(file: Path, **options: object) -> FileHash:
        if file.name == "trainer.json":
            return FileHash(next(readings) * 64, 10, cached=False)
        return hash_file(file)

    monkeypatch.setattr(proof_module, "hash_file", flickering)
    assert prove_checkpoint(path).verdict == "unreadable"


def test_a_page_cache_that_disagrees_with_the_disk_convicts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = seal(tmp_path, 12)
    monkeypatch.setattr(
        proof_module, "hash_file", lambda file, **options: FileHash("a" * 64, 10, cached=False)
    )
    assert prove_checkpoint(path).verdict == "unreadable"


def test_without_deep_the_big_files_are_only_looked_at_and_the_small_ones_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_module, "QUICK_BYTES", 100)
    path = seal(tmp_path, 12)
    flip(path / "model-00001.safetensors", 900)
    assert prove_checkpoint(path, deep=False).verdict == "proven"
    assert prove_checkpoint(path).verdict == "invalid"
    flip(path / "trainer.json", 20)
    assert prove_checkpoint(path, deep=False).reason == "sha256 of trainer.json differs"


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[int] = []
    prove_checkpoint(seal(tmp_path, 12), progress=told.append)
    assert told
    assert min(told) > 0
