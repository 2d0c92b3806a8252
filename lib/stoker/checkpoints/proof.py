"""Proves a checkpoint: checkpoint.json and SHA256SUMS parse, agree line by line, and match the files.

Every file is read past the page cache. A conviction (`invalid`) needs two readings that agree; where a file
system refuses O_DIRECT (tmpfs, overlays) these are two independent readings after dropping the cache, and the
proof says `cached`. A file that cannot be read now, or reads differently twice, is `unreadable`: stop and
look.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.checkpoints.format import (
    BODY,
    SUMS,
    CheckpointBody,
    folders_of,
    mark_of,
    read_body,
    read_sums,
    step_of,
)
from stoker.checkpoints.retention import reading
from stoker.store.checksums import content_digest
from stoker.store.direct import hash_file
from stoker.store.errors import DataError, StorageError
from stoker.store.files import NotPlain

Verdict = Literal["proven", "invalid", "unreadable"]
Progress = Callable[[int], None]

QUICK_BYTES = 1 << 20  # files up to this size are hashed even without deep
SMALL_BYTES = 64 << 20  # checkpoint.json and SHA256SUMS are read whole; intact files are never larger


@dataclass(frozen=True)
class Proof:
    """The verdict on a checkpoint."""

    verdict: Verdict
    reason: str  # names file and figure; empty when proven
    cached: bool  # some file could not be read past the cache
    body: CheckpointBody | None = None  # when proven
    digest: str | None = None  # sha256 of checkpoint.json, of a model's checksums, when proven
    extra: tuple[str, ...] = ()  # files that no list names; never opened


def prove_checkpoint(path: Path, *, deep: bool = True, progress: Progress | None = None) -> Proof:
    """Proves a checkpoint directory; a bad or unreadable checkpoint is a verdict, never an exception.

    Only an unknown format version raises: UnknownFormat, which neither convicts nor proves. With deep=False
    the big files are only checked to be regular files of the right size; the small files are read too.
    `progress` is called from several threads with the bytes read of each file.
    """
    examination = _Examination(path, progress)
    try:
        return examination.prove(deep)
    except DataError as finding:  # evidence from the disk: the checkpoint is not whole
        return Proof("invalid", str(finding), examination.cached)
    except OSError as error:
        detail = str(error) if error.strerror is None else f"{error.filename or path}: {error.strerror}"
        return Proof("unreadable", f"cannot be read now: {detail}", examination.cached)


def prove_model(path: Path, *, progress: Progress | None = None) -> Proof:
    """Proves a model's directory: every file as its SHA256SUMS says, where there is one.

    `digest` tells it from every other content. A file that is a link is a flaw.
    """
    try:
        return Proof("proven", "", cached=False, digest=content_digest(path, progress))
    except (DataError, NotPlain) as finding:
        return Proof("invalid", str(finding), cached=False)
    except OSError as error:
        return Proof("unreadable", f"cannot be read now: {error}", cached=False)


class _Examination:
    """One proof; a DataError describes a flaw, an OSError means that there is no verdict now."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self.path = path
        self.cached = False
        self._progress = progress

    def prove(self, deep: bool) -> Proof:
        if not stat.S_ISDIR(os.lstat(self.path).st_mode):
            raise DataError("it is no directory")
        with reading(self.path):
            return self._judge(self._found(""), deep)

    def _found(self, folder: str) -> dict[str, os.stat_result]:
        """Returns what a directory holds, by path; no other lookup of names, so none can point outside."""
        entries, before = os.scandir(self.path / folder), f"{folder}/" if folder else ""
        return {before + entry.name: entry.stat(follow_symlinks=False) for entry in entries}

    def _judge(self, found: dict[str, os.stat_result], deep: bool) -> Proof:
        sums = read_sums(self._small(SUMS, found))
        data = self._small(BODY, found)
        digest = hashlib.sha256(data).hexdigest()
        if sums.get(BODY) != digest:  # checked first: the version in a damaged file is no evidence
            raise DataError(f"{BODY} and {SUMS} disagree on {BODY}")
        body = read_body(data, self.path / BODY)
        self._agree(sums, body, digest)
        folders = folders_of(body.files)
        for folder in folders:
            if folder not in found or not stat.S_ISDIR(found[folder].st_mode):
                raise DataError(f"{folder} is no directory")
            found |= self._found(folder)
        for name, entry in sorted(body.files.items()):
            size = _plain(name, found).st_size
            if size != entry.size:
                raise DataError(f"{name} has {size} bytes, {BODY} says {entry.size}")
        read = [name for name, entry in sorted(body.files.items()) if deep or entry.size <= QUICK_BYTES]
        self._hash_all({name: sums[name] for name in read})
        extra = sorted(set(found) - set(sums) - {SUMS, *folders})
        return Proof("proven", "", self.cached, body, digest, tuple(extra))

    def _small(self, name: str, found: Mapping[str, os.stat_result]) -> bytes:
        """Returns a small file's bytes, after checking that the disk holds the same."""
        size = _plain(name, found).st_size
        if size > SMALL_BYTES:
            raise DataError(f"{name} has {size} bytes; no checkpoint's is that large")
        data = (self.path / name).read_bytes()
        on_disk = hash_file(self.path / name, progress=self._progress)
        self.cached |= on_disk.cached
        if on_disk.sha256 != hashlib.sha256(data).hexdigest():
            raise StorageError(f"{name}: the page cache and the disk disagree; check the disk")
        return data

    def _agree(self, sums: Mapping[str, str], body: CheckpointBody, digest: str) -> None:
        listed = {**{name: entry.sha256 for name, entry in body.files.items()}, BODY: digest}
        differing = sorted({name for name, _ in listed.items() ^ sums.items()})
        if differing:
            raise DataError(f"{BODY} and {SUMS} disagree on {differing[0]}")
        step = step_of(self.path.name)
        if step is not None and step != body.step:
            raise DataError(f"{BODY} speaks of step {body.step}, the directory's name of step {step}")
        mark = mark_of(self.path.name)
        if mark is not None and not digest.startswith(mark):
            raise DataError(f"{BODY}'s sha256 is {digest[:16]}, the directory's name ends in {mark}")

    def _hash_all(self, expected: Mapping[str, str]) -> None:
        pool = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1))
        try:
            list(pool.map(self._hash, expected.keys(), expected.values()))
        finally:
            pool.shutdown(cancel_futures=True)  # after the first finding no further file is read

    def _hash(self, name: str, expected: str) -> None:
        """Compares a file's sha256 with the expected one; two readings that agree convict."""
        first = hash_file(self.path / name, progress=self._progress)
        self.cached |= first.cached
        if first.sha256 == expected:
            return
        if hash_file(self.path / name, progress=self._progress).sha256 != first.sha256:
            raise StorageError(f"{name} reads differently each time; check the disk and memory")
        raise DataError(f"sha256 of {name} differs")


def _plain(name: str, found: Mapping[str, os.stat_result]) -> os.stat_result:
    """Returns the stat of a listed file; raises DataError unless it is an existing regular file."""
    if name not in found:
        raise DataError(f"{name} is missing")
    if not stat.S_ISREG(found[name].st_mode):
        raise DataError(f"{name} is not a regular file")
    return found[name]
