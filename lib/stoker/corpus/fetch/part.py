"""The bytes of one file being fetched: writes, hashes, commits and claims them; renames the file."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.corpus.fetch.landing import Landing, PartRecord, part_bytes
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import Answer, FetchFailed, PartialContent, resume_offset, written_end
from stoker.store.direct import FileHash, hash_file
from stoker.store.errors import StorageError, UnavailableError

_READ = 1 << 20
# A chunk is written at this size or after this time; a kill loses unwritten bytes.
_CHUNK, _WRITE_S = 1 << 20, 0.02
# A claim of no bytes keeps bytes that were written without a commit; for smaller files it costs too much.
_WORTH_CLAIMING = 1 << 20

Tick = Callable[[int], None]


class Content:
    """The running hashes of a file's bytes: sha256, and git's blob name where the size is known."""

    def __init__(self, file: RemoteFile) -> None:
        self.size = 0
        self._file = file
        self._sha256 = hashlib.sha256()
        self.git = None
        if file.git is not None and file.size is not None:
            self.git = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)

    def add(self, data: bytes | bytearray) -> None:
        """Hashes the next bytes; hashing releases the interpreter for other threads."""
        self._sha256.update(data)
        if self.git is not None:
            self.git.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        """The sha256 of the bytes so far."""
        return self._sha256.copy().hexdigest()

    def mismatch(self) -> tuple[str, str] | None:
        """Returns (expected, found) of the first sum that differs from the listing's; None when all agree."""
        git = self.git.hexdigest() if self.git else None
        for expected, found in ((self._file.sha256, self.sha256), (self._file.git, git)):
            if expected is not None and found is not None and found != expected:
                return expected, found
        return None

    def read_on(self, descriptor: int, size: int, tick: Tick) -> None:
        """Hashes an open file's next bytes up to `size`, or to its end. Raises OSError."""
        while self.size < size and (data := os.pread(descriptor, min(_READ, size - self.size), self.size)):
            self.add(data)
            tick(self.size)


class Part:
    """One unfinished file. A commit may come from another thread while bytes are received.

    Every method may raise the disk's OSError or UnavailableError; close() and open() may alternate.
    """

    def __init__(self, file: RemoteFile, landing: Landing) -> None:
        self._file, self._landing = file, landing
        self._committing = threading.Lock()  # one commit at a time; taken before `_lock`
        self._lock = threading.Lock()  # keeps descriptor and content consistent
        self._descriptor: int | None = None
        self._content = Content(file)
        self._pending = bytearray()  # received but less than a chunk; a commit writes it
        self._wrote_at = 0.0
        self._trouble: Exception | None = None  # error of a write or commit, after which receive() raises it
        self._durable = 0
        self.record = self._blank()

    @property
    def opened(self) -> bool:
        return self._descriptor is not None

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._content.size

    @property
    def kept(self) -> PartialContent:
        """The content that the next bytes must continue."""
        return replace(self.record, offset=self.size)

    @property
    def total(self) -> int | None:
        """The whole file's size, from the listing or an answer; None while unknown."""
        return self._file.size if self._file.size is not None else self.record.total

    def open(self, tick: Tick) -> int:
        """Opens the part and reads it back: its durable bytes, and later bytes if its sum will prove them.

        Returns the number of claimed bytes that differ from the bytes made durable.
        """
        path = self._landing.part(self._file.path)
        claim = PartRecord.read(self._landing.record(self._file.path))
        record = claim if claim is not None and claim.sums == self._file.sum else self._blank()
        size = part_bytes(path) if record is claim else 0
        offset = resume_offset(record, self._file, size)
        end = written_end(record, self._file, size, offset)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        content = Content(self._file)
        try:
            os.ftruncate(descriptor, end)
            content.read_on(descriptor, offset, tick)
            is_right = content.size == offset and (not offset or content.sha256 == record.prefix)
            if is_right:
                content.read_on(descriptor, end, tick)
            rotten = 0
            if not is_right or content.size != end:
                # The disk returns other bytes than were made durable: none of them can be trusted.
                os.ftruncate(descriptor, 0)
                content, offset, rotten = Content(self._file), 0, offset
        except BaseException:
            os.close(descriptor)
            raise
        with self._lock:
            self._descriptor, self._content, self._durable = descriptor, content, offset
        self.record = replace(record, offset=offset)
        is_worth_it = self._file.size is None or self._file.size >= _WORTH_CLAIMING
        if is_worth_it if claim is None else claim.offset > offset:
            # Before new bytes follow: after a kill the old claim, or none, would cover them.
            self._write_claim(prefix="", validator="", total=None)
        self.commit()
        return rotten

    def note(self, answer: Answer, total: int | None) -> None:
        """Records which answer the next bytes come from."""
        with self._committing:
            self._trouble = None
            self.record = replace(self.record, validator=answer.validator, total=total)

    def receive(self, chunk: bytes, total: int | None) -> None:
        """Adds the next bytes; raises FetchFailed when the file becomes longer than its size."""
        with self._lock:
            if self._trouble is not None:
                raise self._trouble
            if total is not None and self._content.size + len(self._pending) + len(chunk) > total:
                raise FetchFailed("length", f"{self._file.path}: more bytes came than the {total} there are")
            self._pending += chunk
            if len(self._pending) >= _CHUNK or time.monotonic() >= self._wrote_at + _WRITE_S:
                self._write_pending()

    def write_pending(self) -> None:
        """Writes and hashes the received bytes."""
        with self._lock:
            self._write_pending()

    def commit(self) -> int | None:
        """Makes the bytes durable, then claims them; returns their number, None without new bytes."""
        with self._committing:
            with self._lock:
                self._write_pending()
                descriptor, size, prefix = self._descriptor, self._content.size, self._content.sha256
            if descriptor is None or size == self._durable:
                return None
            try:
                os.fdatasync(descriptor)
                self._write_claim(offset=size, prefix=prefix)
            except (OSError, UnavailableError) as error:
                self._trouble = error
                raise
            self._durable = size
            return size

    def restart(self) -> int:
        """Drops all bytes, durably, before other content is received; returns their number."""
        with self._committing:
            with self._lock:
                dropped = self._content.size
                if self._descriptor is not None:
                    os.ftruncate(self._descriptor, 0)
                self._content, self._durable, self._pending = Content(self._file), 0, bytearray()
            self._write_claim(offset=0, prefix="", validator="", total=None)
        return dropped

    def mismatch(self) -> tuple[str, str] | None:
        """Returns (expected, found) where the whole file's sum differs from the listing's."""
        return self._content.mismatch()

    def start_over(self, mismatches: int) -> None:
        """Closes the part and claims only the count of mismatches; its bytes are evidence now."""
        self.close()
        self.record = self._blank()
        self._write_claim(mismatches=mismatches)

    def publish(self) -> tuple[int, str]:
        """Renames the whole file to its own name; returns its size and sha256."""
        assert self._descriptor is not None
        size, sha256 = self._content.size, self._content.sha256
        with self._committing:
            os.fdatasync(self._descriptor)
            self._durable = size  # prevents a later commit, which would claim a part that was renamed
            self._landing.publish(self._file.path)
        self.close()
        return size, sha256

    def close(self) -> None:
        """Closes the file without making its bytes durable."""
        with self._committing, self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor, self._content, self._durable = None, Content(self._file), 0
            self._pending = bytearray()

    def _write_pending(self) -> None:
        """Writes pending bytes; those that a full disk refuses are dropped and requested again."""
        data, self._pending = self._pending, bytearray()
        if self._descriptor is not None and data:
            self._wrote_at = time.monotonic()
            try:
                write_at(self._descriptor, data, self._content.size)
            except OSError as error:
                self._trouble = error
                raise
            self._content.add(data)

    def _blank(self) -> PartRecord:
        return PartRecord(dataset=self._landing.dataset, path=self._file.path, sums=self._file.sum)

    def _write_claim(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)
        self._landing.write_part(self.record)


def write_at(descriptor: int, data: bytes | bytearray, at: int) -> None:
    """Writes all bytes at that offset. Raises OSError."""
    view = memoryview(data)
    while view:
        wrote = os.pwrite(descriptor, view, at)
        view, at = view[wrote:], at + wrote


def look_at_landed(
    file: RemoteFile, path: Path, tick: Tick = lambda _: None
) -> tuple[FileHash, tuple[str, str] | None] | None:
    """Hashes a file in the landing, past the page cache where possible; None if it is missing.

    Returns the hash and (expected, found) of a sum or size that differs from the listing's; a file of another
    size is not hashed. Raises StorageError.
    """
    try:
        about = os.lstat(path)
        if not stat.S_ISREG(about.st_mode):  # the watchdog writes no links or fifos here
            raise StorageError(f"{path} is not a regular file; move it out of the landing")
        if file.size is not None and about.st_size != file.size:  # a partial file: no need to read
            sizes = f"{file.size} bytes", f"{about.st_size} bytes"
            return FileHash("", about.st_size, cached=False), sizes
        git = Content(file).git
        found = hash_file(path, progress=tick, also=git)
    except (FileNotFoundError, NotADirectoryError):
        return None
    expected, sha256 = file.sha256 or file.landed, found.sha256  # not as `landed`: rot, or a foreign write
    if git is not None:
        expected, sha256 = file.git, git.hexdigest()
    return found, (expected, sha256) if expected is not None and expected != sha256 else None
