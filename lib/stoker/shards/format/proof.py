"""Compares a shard set's own claims with its files: quickly, or as a proof past the page cache.

A proof has three verdicts. `invalid` convicts, so it is never given on evidence from the page cache alone,
nor after a failed read: that is `unreadable`, which means stop and look, not throw away.
"""

from __future__ import annotations

import errno
import hashlib
import operator
import os
import re
import stat
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from stoker.corpus.records.sources import SPLITS
from stoker.shards.format.manifest import (
    BUILD_NOTE,
    MANIFEST,
    OFFSET_BYTES,
    SUMS,
    TOKEN_BYTES,
    DataFile,
    Manifest,
    ManifestInvalid,
    beside,
    parse_sums,
)
from stoker.store.direct import hash_file
from stoker.store.errors import StorageError, UnknownFormat
from stoker.store.files import opened

Verdict = Literal["proven", "invalid", "unreadable"]
Progress = Callable[[int], None]

SAMPLES = 32  # document ends that a quick look compares with the tokens of each file
SET_NAME = re.compile(r"[0-9a-f]{16}")  # a published set's directory: the beginning of its key


@dataclass(frozen=True)
class Proof:
    """The verdict on a set."""

    verdict: Verdict
    reason: str  # names file and figure; empty when proven
    cached: bool  # the file system refused reads past its cache; a wrong hash is then `unreadable`
    manifest_sha256: str | None = None
    manifest: Manifest | None = None
    unknown: tuple[str, ...] = ()  # files that no list names


def prove_set(path: Path, *, key: str | None = None, progress: Progress | None = None) -> Proof:
    """Proves the shard set in a directory, and that it has the given key, if any.

    Reads every byte of it; `progress` gets the bytes read. A bad or unreadable set is a verdict, not an
    error. Only an unknown format version raises: UnknownFormat.
    """
    walk = Inspection(path, progress, deep=True)
    try:
        finding = next(walk.disagreements(key), None)
    except OSError as error:
        return Proof("unreadable", str(error), walk.cached)
    if finding is None:
        return Proof("proven", "", walk.cached, walk.manifest_sha256, walk.manifest, walk.unknown)
    if finding.by_content and walk.cached:
        return Proof("unreadable", f"{finding.text}; read through the page cache only", walk.cached)
    return Proof("invalid", finding.text, walk.cached)


def standing_set(path: Path, key: str, progress: Progress) -> Proof:
    """Proves a set whose name another set was to get; the proof has a manifest if the set is right.

    Raises StorageError where it cannot be read now: that is no verdict.
    """
    proof = prove_set(path, key=key, progress=progress)
    if proof.verdict == "unreadable":
        raise StorageError(f"{path}: {proof.reason}; check the disk and try again")
    return proof


def inspect_set(path: Path) -> Inspection:
    """Compares all files except the tokens, of which only sampled document ends are read.

    Raises OSError; UnknownFormat where its manifest, true to its checksum, has an unknown version.
    """
    walk = Inspection(path, None, deep=False)
    walk.findings = tuple(finding.text for finding in walk.disagreements(None))
    return walk


@dataclass(frozen=True)
class _Finding:
    """One contradiction; `by_content` where only the bytes that were read show it."""

    text: str
    by_content: bool = True


class Inspection:
    """One walk over a set's files, with its results."""

    def __init__(self, path: Path, progress: Progress | None, *, deep: bool) -> None:
        self.path, self.progress, self.deep = path, progress, deep
        self.cached = False
        self.manifest: Manifest | None = None  # None where unusable
        self.manifest_sha256: str | None = None
        self.unknown: tuple[str, ...] = ()  # files that no list names
        self.findings: tuple[str, ...] = ()  # each "file: figure"

    def disagreements(self, key: str | None) -> Iterator[_Finding]:
        """Yields every contradiction, the cheap checks first; raises OSError, UnknownFormat."""
        names = {entry.name for entry in self.path.iterdir()}
        for name in (SUMS, MANIFEST):
            if name not in names:
                yield _Finding(f"{name}: missing", by_content=False)
        sums: dict[str, str] | None = None
        if SUMS in names:
            try:
                sums = parse_sums(self._small(SUMS))
            except ManifestInvalid as error:
                yield _Finding(f"{SUMS}: {error}")
        if MANIFEST not in names:
            return
        data = self._small(MANIFEST)
        self.manifest_sha256 = hashlib.sha256(data).hexdigest()
        is_listed = sums is not None and sums.get(MANIFEST) == self.manifest_sha256
        if sums is not None and not is_listed:
            yield _Finding(f"{SUMS}: its sha256 of {MANIFEST} is another")
        try:
            self.manifest = Manifest.parse(data, self.path / MANIFEST)
        except (ManifestInvalid, UnknownFormat) as error:
            if isinstance(error, UnknownFormat) and is_listed:
                raise
            yield _Finding(f"{MANIFEST}: {error}")
            return
        listed = {name: file.sha256 for name, file in self.manifest.files.items()}
        self.unknown = tuple(sorted(names - set(listed) - {MANIFEST, SUMS, BUILD_NOTE}))
        wanted = key or (self.path.resolve().name if SET_NAME.fullmatch(self.path.resolve().name) else "")
        if not self.manifest.key.startswith(wanted):
            text = f"{MANIFEST}: the key begins {self.manifest.key[:16]}, not {wanted[:16]}"
            yield _Finding(text, by_content=False)
        if sums is not None:
            said = {name: sha256 for name, sha256 in sums.items() if name != MANIFEST}
            for name in sorted({name for name, _ in said.items() ^ listed.items()}):
                yield _Finding(f"{SUMS}: it and {MANIFEST} disagree on {name}")
        yield from self._file_findings(self.manifest, names)

    def _file_findings(self, manifest: Manifest, names: set[str]) -> Iterator[_Finding]:
        sound = set()
        for name, file in manifest.files.items():
            if flaw := self._flaw(name, file) if name in names else f"{name}: missing":
                yield _Finding(flaw, by_content=False)
            else:
                sound.add(name)
        for split in SPLITS:
            rows = _Rising(-1)
            for name, _ in manifest.bins(split):
                if beside(name, "idx") in sound:
                    yield from self._end_findings(name, manifest, sampled=not self.deep and name in sound)
                if beside(name, "row") in sound:
                    rows = _Rising(rows.last)
                    yield from self._row_findings(beside(name, "row"), manifest, rows)
                if self.deep and name in sound and (flaw := self._content_flaw(name, manifest)):
                    yield _Finding(flaw)

    def _end_findings(self, name: str, manifest: Manifest, *, sampled: bool) -> Iterator[_Finding]:
        index, ends, tokens = beside(name, "idx"), _Rising(0), manifest.files[name].tokens
        flaw = self._content_flaw(index, manifest, ends) or ends.flaw(f"{index}: document ends")
        if not flaw and ends.last != tokens:
            flaw = f"{index}: ends at token {ends.last}, the manifest says {tokens}"
        if flaw:
            yield _Finding(flaw)
        elif sampled:
            yield from self._sampled(name, manifest)

    def _row_findings(self, name: str, manifest: Manifest, rows: _Rising) -> Iterator[_Finding]:
        flaw = self._content_flaw(name, manifest, rows) or rows.flaw(f"{name}: row numbers")
        if not flaw and rows.last >= (manifest.books.rows or 0):
            flaw = f"{name}: row {rows.last}, the source has {manifest.books.rows} rows"
        if flaw:
            yield _Finding(flaw)

    def _flaw(self, name: str, file: DataFile) -> str:
        found = (self.path / name).lstat()
        if not stat.S_ISREG(found.st_mode):
            return f"{name}: not a regular file"
        if found.st_size != file.size:
            return f"{name}: {found.st_size} bytes, the manifest says {file.size}"
        return ""

    def _content_flaw(self, name: str, manifest: Manifest, numbers: _Rising | None = None) -> str:
        found = hash_file(self.path / name, past_cache=self.deep, progress=self.progress, also=numbers)
        self.cached |= found.cached
        return "" if found.sha256 == manifest.files[name].sha256 else f"{name}: its sha256 differs"

    def _sampled(self, name: str, manifest: Manifest) -> Iterator[_Finding]:
        """Checks for end-of-text at sampled document ends: other tokens rarely have it there."""
        width, documents = TOKEN_BYTES[manifest.dtype], manifest.files[name].documents or 0
        before = manifest.end_of_text == "before"
        # The last imported document may be cut off.
        boundaries = max(0, documents - 1) if manifest.books.is_imported else documents
        index = beside(name, "idx")
        with opened(self.path / name, os.O_RDONLY) as tokens, opened(self.path / index, os.O_RDONLY) as ends:
            for document in sorted({number * boundaries // SAMPLES for number in range(SAMPLES)}):
                end = _number(ends, document, OFFSET_BYTES)
                if boundaries and _number(tokens, end if before else end - 1, width) != manifest.eot:
                    yield _Finding(
                        f"{name}: document {document} does not end at token {end}, where {index} says"
                    )
                    return

    def _small(self, name: str) -> bytes:
        """Returns a small file's bytes; a proof makes sure that the disk holds the same."""
        data = (self.path / name).read_bytes()
        if self.deep:
            on_disk = hash_file(self.path / name, progress=self.progress)
            self.cached |= on_disk.cached
            if on_disk.sha256 != hashlib.sha256(data).hexdigest():
                raise OSError(errno.EAGAIN, "the page cache and the disk disagree", name)
        return data


class _Rising:
    """Checks that the numbers in a file rise strictly; `last` is the number before the first.

    Every document has a token, so its end is greater than the end before. Documents are in the order of the
    source, so their row numbers rise over all files of a split.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self._taken, self._fault = 0, -1
        self._rest = b""

    def update(self, data: memoryview) -> None:
        """Checks more bytes of the file."""
        held = self._rest + bytes(data)
        whole = len(held) - len(held) % OFFSET_BYTES
        self._rest = held[whole:]
        numbers = array("Q", held[:whole])
        if sys.byteorder == "big":
            numbers.byteswap()
        if not numbers:
            return
        rising = numbers[0] > self.last and all(map(operator.lt, numbers, islice(numbers, 1, None)))
        if not rising and self._fault < 0:
            self._fault = self._taken
        self._taken, self.last = self._taken + len(numbers), numbers[-1]

    def flaw(self, what: str) -> str:
        """Returns near which document the numbers do not rise; empty where they rise everywhere."""
        return "" if self._fault < 0 else f"{what} do not rise from document {self._fault} on"


def _number(descriptor: int, place: int, width: int) -> int:
    return int.from_bytes(os.pread(descriptor, width, place * width), "little")
