"""The proof of a shard set: everything it says of itself, compared with what is read past the cache.

Three verdicts. `invalid` convicts, so it is never given on what the page cache says alone, nor where a read
failed: that is `unreadable`, and means stop and look, not throw away.
"""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.shards.format.direct_file import PastCacheFile
from stoker.shards.format.manifest import (
    BUILD_NOTE,
    MANIFEST,
    SPLITS,
    SUMS,
    Manifest,
    ManifestInvalid,
    parse_sums,
)
from stoker.shards.format.row_numbers import Flaw, ends_flaw, row_flaw
from stoker.store.hashing import FileHash, hash_file

Verdict = Literal["proven", "invalid", "unreadable"]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Proof:
    """What was found. `reason` names file and figure, empty when proven; `unknown` are files no one listed.

    `cached`: the file system let nothing be read past its cache; then a wrong hash is `unreadable`.
    """

    verdict: Verdict
    reason: str
    cached: bool
    manifest_sha256: str | None
    manifest: Manifest | None
    unknown: tuple[str, ...] = ()


class _Invalid(Exception):
    """Something disagrees; the message says what. `hashed`: seen only by reading content."""

    def __init__(self, reason: str, *, hashed: bool = False) -> None:
        super().__init__(reason)
        self.hashed = hashed


def prove_set(path: Path, *, key: str | None = None, progress: Progress | None = None) -> Proof:
    """Prove the shard set in a directory, against the key it should have if one is given.

    Reads every byte of it; `progress` is told the bytes read. Raises nothing for a set that is bad or cannot
    be read: that is the verdict. Only a format version that is not known here is none: UnknownFormat.
    """
    examination = _Examination(path, progress)
    try:
        return examination.prove(key)
    except _Invalid as finding:
        cached = examination.cached
        if finding.hashed and cached:
            return Proof("unreadable", f"{finding}; read through the page cache only", True, None, None)
        return Proof("invalid", str(finding), cached, None, None)
    except OSError as error:
        return Proof("unreadable", str(error), examination.cached, None, None)


class _Examination:
    def __init__(self, path: Path, progress: Progress | None) -> None:
        self.path = path
        self.progress = progress
        self.cached = False

    def prove(self, key: str | None) -> Proof:
        names = {entry.name for entry in self.path.iterdir()}
        sums = self._sums(self._small(SUMS, names))
        data = self._small(MANIFEST, names)
        manifest_sha256 = hashlib.sha256(data).hexdigest()
        if sums.get(MANIFEST) != manifest_sha256:
            raise _Invalid(f"{MANIFEST}: its sha256 is not the one in {SUMS}", hashed=True)
        try:
            manifest = Manifest.parse(data, self.path / MANIFEST)
        except ManifestInvalid as error:
            raise _Invalid(f"{MANIFEST}: {error}", hashed=True) from error
        if key is not None and manifest.key != key:
            raise _Invalid(f"{MANIFEST}: key {manifest.key[:16]}… is not {key[:16]}…")
        listed = {name: file.sha256 for name, file in manifest.files.items()}
        if sums != {**listed, MANIFEST: manifest_sha256}:
            differing = sorted(set(sums.items()) ^ {*listed.items(), (MANIFEST, manifest_sha256)})
            raise _Invalid(f"{SUMS} and {MANIFEST} disagree on {differing[0][0]}", hashed=True)
        self._sizes(manifest, names)
        self._numbers(manifest, ends_flaw)
        self._hashes(listed)
        self._numbers(manifest, row_flaw)
        unknown = tuple(sorted(names - set(sums) - {SUMS, BUILD_NOTE}))
        return Proof("proven", "", self.cached, manifest_sha256, manifest, unknown)

    def _small(self, name: str, names: set[str]) -> bytes:
        """A small file's bytes, which are then known to be what lies on disk."""
        if name not in names:
            raise _Invalid(f"{name} is missing")
        data = (self.path / name).read_bytes()
        on_disk = self._hash(name)
        if on_disk.sha256 != hashlib.sha256(data).hexdigest():
            raise OSError(errno.EAGAIN, "the page cache and the disk disagree", name)
        return data

    @staticmethod
    def _sums(data: bytes) -> Mapping[str, str]:
        try:
            return parse_sums(data)
        except ManifestInvalid as error:
            raise _Invalid(f"{SUMS}: {error}", hashed=True) from error

    def _sizes(self, manifest: Manifest, names: set[str]) -> None:
        for name, file in manifest.files.items():
            if name not in names:
                raise _Invalid(f"{name} is missing")
            found = (self.path / name).lstat()
            if not stat.S_ISREG(found.st_mode):
                raise _Invalid(f"{name} is not a regular file")
            if found.st_size != file.size:
                raise _Invalid(f"{name}: {found.st_size} bytes, the manifest says {file.size}")

    def _numbers(self, manifest: Manifest, flaw_of: Callable[..., Flaw | None]) -> None:
        # Read once more than for their hashes: 8 bytes a document, whose tokens take a thousand or so.
        for split in SPLITS:
            if (flaw := flaw_of(manifest, split, self._past_cache)) is not None:
                raise _Invalid(f"{flaw[0]}: {flaw[1]}", hashed=True)

    def _past_cache(self, name: str) -> PastCacheFile:
        file = PastCacheFile(self.path / name)
        self.cached |= file.cached
        return file

    def _hashes(self, listed: Mapping[str, str]) -> None:
        for name, sha256 in sorted(listed.items()):
            found = self._hash(name)
            if found.sha256 != sha256:
                raise _Invalid(f"sha256 of {name} differs", hashed=True)

    def _hash(self, name: str) -> FileHash:
        found = hash_file(self.path / name, progress=self.progress)
        self.cached |= found.cached
        return found
