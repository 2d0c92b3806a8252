"""The proof finds every wrong byte, and convicts only what it has seen past the cache."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker.shards.format.proof
from stoker.cli.main import exit_code
from stoker.shards.build.build_worker import main
from stoker.shards.format.proof import inspect_set, prove_set
from stoker.store.direct import FileHash, hash_file
from stoker.store.errors import StorageError, UnknownFormat
from stoker.store.files import canonical_json
from support.builds import Recorder, build_task, set_bytes, small_source, small_tokenizer


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("proof")
    task = build_task(home, small_source(home, 300), small_tokenizer(home / "tokenizer.json"))
    assert main(task, Recorder())["status"] == "published"
    return Path(task["target"])


@pytest.fixture
def shard_set(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / built.name))


def rewrite(shard_set: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and make SHA256SUMS agree with it again."""
    body = json.loads((shard_set / "manifest.json").read_bytes())
    change(body)
    data = canonical_json(body)
    old = hashlib.sha256((shard_set / "manifest.json").read_bytes()).hexdigest()
    (shard_set / "manifest.json").write_bytes(data)
    sums = (shard_set / "SHA256SUMS").read_text()
    (shard_set / "SHA256SUMS").write_text(sums.replace(old, hashlib.sha256(data).hexdigest()))


def replace_file(shard_set: Path, name: str, data: bytes) -> None:
    """Give a data file other content and make manifest and SHA256SUMS agree with it."""
    old = hashlib.sha256((shard_set / name).read_bytes()).hexdigest()
    new = hashlib.sha256(data).hexdigest()
    (shard_set / name).write_bytes(data)
    sums = shard_set / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(old, new))
    rewrite(shard_set, lambda body: body["files"][name].update(sha256=new))


def test_a_published_set_is_proven_and_sha256sum_agrees(built: Path) -> None:
    proof = prove_set(built)
    assert (proof.verdict, proof.reason, proof.unknown) == ("proven", "", ())
    assert proof.manifest is not None
    assert proof.manifest_sha256 == hashlib.sha256((built / "manifest.json").read_bytes()).hexdigest()
    assert proof.manifest_sha256 == proof.manifest.sha256
    assert (
        os.waitstatus_to_exitcode(os.system(f"cd {built} && sha256sum --quiet --strict -c SHA256SUMS")) == 0
    )


def test_one_flipped_bit_in_any_file_is_found(shard_set: Path) -> None:
    for name, data in set_bytes(shard_set).items():
        for place in (0, len(data) // 2, len(data) - 1):
            if data:
                wrong = bytearray(data)
                wrong[place] ^= 1
                (shard_set / name).write_bytes(wrong)
                proof = prove_set(shard_set)
                assert proof.verdict == "invalid", (name, place)
                assert not proof.cached
        (shard_set / name).write_bytes(data)
    assert prove_set(shard_set).verdict == "proven"


def test_every_missing_shortened_or_lengthened_file_is_named(shard_set: Path) -> None:
    for name, data in set_bytes(shard_set).items():
        for wrong in (None, data[:-1], data + b"\0"):
            if wrong is None:
                (shard_set / name).unlink()
            else:
                (shard_set / name).write_bytes(wrong)
            proof = prove_set(shard_set)
            if wrong != data:
                assert proof.verdict == "invalid", name
                assert name in proof.reason or name in ("manifest.json", "SHA256SUMS")
                assert inspect_set(shard_set).findings, name
            (shard_set / name).write_bytes(data)


def test_two_token_files_swapped_are_found(shard_set: Path) -> None:
    one, other = shard_set / "train-00000.bin", shard_set / "train-00001.bin"
    one.rename(shard_set / "x")
    other.rename(one)
    (shard_set / "x").rename(other)
    assert prove_set(shard_set).verdict == "invalid"
    assert any("train-0000" in finding for finding in inspect_set(shard_set).findings)


def test_other_tokens_of_the_same_size_are_found_without_hashing(shard_set: Path) -> None:
    path = shard_set / "train-00000.bin"
    path.write_bytes(path.read_bytes()[2:] + b"\1\0")
    assert [finding.split(":")[0] for finding in inspect_set(shard_set).findings] == ["train-00000.bin"]


def test_a_set_that_is_consistently_another_is_not_the_one_asked_for(shard_set: Path) -> None:
    key = prove_set(shard_set).manifest.key  # type: ignore[union-attr]
    assert prove_set(shard_set, key=key).verdict == "proven"
    proof = prove_set(shard_set, key="f" * 64)
    assert (proof.verdict, "key" in proof.reason) == ("invalid", True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: body["books"].update(rows=body["books"]["rows"] + 1), "rows are not"),
        (lambda body: body["files"].pop("train-00000.idx"), "without a gap"),
        (lambda body: body["files"]["val-00000.bin"].update(sha256="0" * 64), "disagree on val-00000.bin"),
    ],
)
def test_a_manifest_edited_with_its_sum_is_found_too(
    shard_set: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    rewrite(shard_set, change)
    proof = prove_set(shard_set)
    assert proof.verdict == "invalid"
    assert words in proof.reason


def test_a_newer_manifest_is_no_verdict_unless_its_sum_is_wrong(shard_set: Path) -> None:
    rewrite(shard_set, lambda body: body.update(v=2))
    for look in (prove_set, inspect_set):
        with pytest.raises(UnknownFormat, match=rf"{shard_set}/manifest\.json is of format version 2"):
            look(shard_set)
    manifest = shard_set / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"v":2', b'"v":3'))
    assert prove_set(shard_set).verdict in ("invalid", "unreadable")
    assert "its sha256 of manifest.json is another" in prove_set(shard_set).reason
    assert any(finding.startswith("SHA256SUMS") for finding in inspect_set(shard_set).findings)


def test_a_document_dropped_from_the_index_with_everything_else_made_to_agree_is_found(
    shard_set: Path,
) -> None:
    shorter = {name: (shard_set / name).read_bytes()[:-8] for name in ("train-00000.idx", "train-00000.row")}
    for name, data in shorter.items():
        replace_file(shard_set, name, data)

    def drop(body: dict[str, Any]) -> None:
        for name, data in shorter.items():
            body["files"][name]["size"] = len(data)
        body["files"]["train-00000.bin"]["documents"] -= 1
        for books in (body["books"], body["books"]["train"]):
            books["documents"] -= 1
        body["books"]["dropped"]["null"] += 1

    rewrite(shard_set, drop)
    proof = prove_set(shard_set)
    assert (proof.verdict, "train-00000.idx" in proof.reason) == ("invalid", True)
    assert any(finding.startswith("train-00000.idx") for finding in inspect_set(shard_set).findings)


def backwards(ends: np.ndarray) -> None:
    ends[:-1] = ends[-2::-1]


def one_twice(ends: np.ndarray) -> None:
    ends[0] = ends[1]


def short(ends: np.ndarray) -> None:
    ends[-1] -= 1


def from_nothing(ends: np.ndarray) -> None:
    ends[0] = 0


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (backwards, "do not rise from document 0 on"),
        (one_twice, "do not rise"),
        (from_nothing, "do not rise"),
        (short, "the manifest says"),
    ],
)
def test_document_ends_that_cannot_be_right_are_found_though_every_sum_agrees(
    shard_set: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[np.ndarray], None], words: str
) -> None:
    ends = np.fromfile(shard_set / "train-00000.idx", "<u8")
    spoil(ends)
    replace_file(shard_set, "train-00000.idx", ends.tobytes())
    assert exit_code(["verify", "shards", str(shard_set)]) == 1
    told = capsys.readouterr().out
    assert f"{shard_set}: invalid: train-00000.idx: " in told
    assert words in told


def swapped_rows(rows: np.ndarray) -> None:
    rows[[2, 3]] = rows[[3, 2]]


def doubled_row(rows: np.ndarray) -> None:
    rows[-1] = rows[-2]


def begun_anew(rows: np.ndarray) -> None:
    rows[:] = np.arange(len(rows))


def beyond_the_source(rows: np.ndarray) -> None:
    rows[-1] = 300


@pytest.mark.parametrize(
    ("spoil", "name", "words"),
    [
        (swapped_rows, "train-00000.row", "do not rise"),
        (doubled_row, "val-00000.row", "do not rise"),
        (begun_anew, "train-00001.row", "do not rise"),
        (beyond_the_source, "train-{last:05d}.row", "row 300, the source has 300 rows"),
    ],
)
def test_row_numbers_that_cannot_be_right_are_found_though_every_sum_agrees(
    shard_set: Path, spoil: Callable[[np.ndarray], None], name: str, words: str
) -> None:
    name = name.format(last=len(list(shard_set.glob("train-*.row"))) - 1)
    rows = np.fromfile(shard_set / name, "<u8")
    spoil(rows)
    replace_file(shard_set, name, rows.tobytes())
    proof = prove_set(shard_set)
    assert proof.verdict == "invalid"
    assert proof.reason.startswith(f"{name}: ")
    assert words in proof.reason


def test_files_nobody_listed_are_reported_and_convict_nothing(shard_set: Path) -> None:
    (shard_set / "notes.txt").write_text("hello")
    proof = prove_set(shard_set)
    assert (proof.verdict, proof.unknown) == ("proven", ("notes.txt",))


def test_a_wrong_hash_seen_through_the_cache_convicts_nothing(
    shard_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        stoker.shards.format.proof,
        "hash_file",
        lambda path, **named: replace(hash_file(path, **named), cached=True),
    )
    assert (prove_set(shard_set).verdict, prove_set(shard_set).cached) == ("proven", True)
    path = shard_set / "train-00000.bin"
    path.write_bytes(bytes(path.stat().st_size))
    proof = prove_set(shard_set)
    assert (proof.verdict, proof.cached) == ("unreadable", True)
    path.unlink()
    assert prove_set(shard_set).verdict == "invalid"  # no cache makes a file vanish


def test_a_cache_that_differs_from_the_disk_convicts_nothing(
    shard_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        stoker.shards.format.proof,
        "hash_file",
        lambda path, **_: FileHash("0" * 64, path.stat().st_size, cached=False),
    )
    assert prove_set(shard_set).verdict == "unreadable"


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ENOTCONN])
def test_a_disk_that_fails_convicts_nothing(
    shard_set: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(path: Path, **_: object) -> FileHash:
        raise StorageError(f"cannot read {path}", number)

    monkeypatch.setattr(stoker.shards.format.proof, "hash_file", fail)
    proof = prove_set(shard_set)
    assert proof.verdict == "unreadable"
    assert "SHA256SUMS" in proof.reason


def test_a_directory_that_is_not_there_is_unreadable_not_invalid(tmp_path: Path) -> None:
    assert prove_set(tmp_path / "unmounted").verdict == "unreadable"
