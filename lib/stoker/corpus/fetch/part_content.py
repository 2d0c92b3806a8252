"""The bytes of a file that is being fetched, and the sums of its content."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.corpus.http.remote_file import RemoteFile
from stoker.store.errors import StorageError, UnavailableError, storage_errors
from stoker.store.files import opened
from stoker.store.hashing import hash_file

_READ = 1 << 20


class Content:
    """The running sums of a file's bytes: sha256, and git's blob name where the size is known."""

    def __init__(self, file: RemoteFile) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._git = None
        if file.git is not None and file.size is not None:
            self._git = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes; hashing releases the interpreter for other threads."""
        self._sha256.update(data)
        if self._git is not None:
            self._git.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        """Of the bytes so far."""
        return self._sha256.copy().hexdigest()

    def mismatch(self, file: RemoteFile) -> tuple[str, str] | None:
        """(expected, found) of the first sum that differs from the listing's; None when all agree."""
        found = {"sha256": self.sha256, "git": self._git.hexdigest() if self._git else None}
        for name, expected in (("sha256", file.sha256), ("git", file.git)):
            if expected is not None and found[name] is not None and found[name] != expected:
                return expected, str(found[name])
        return None

    @classmethod
    def of_prefix(
        cls, file: RemoteFile, descriptor: int, size: int, tick: Callable[[int], None] = lambda _: None
    ) -> Content:
        """The sums of an open file's first `size` bytes, read back. Raises OSError."""
        content = cls(file)
        content.read_on(descriptor, size, tick)
        return content

    def read_on(self, descriptor: int, size: int, tick: Callable[[int], None] = lambda _: None) -> None:
        """Take an open file's next bytes up to `size`, or to its end. Raises OSError."""
        while self.size < size:
            data = os.pread(descriptor, min(_READ, size - self.size), self.size)
            if not data:
                break
            self.add(data)
            tick(self.size)


class PartFile:
    """The open bytes of an unfinished file, cut to what is claimed durable."""

    def __init__(self, path: Path, offset: int) -> None:
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        except FileNotFoundError as error:
            raise UnavailableError(f"{path.parent} is not there; mount the disk again") from error
        self._end = offset
        os.ftruncate(self.descriptor, offset)

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Write every byte at the end. Raises OSError, then with the end where it was."""
        view, at = memoryview(data), self._end
        while view:
            wrote = os.pwrite(self.descriptor, view, at)
            view, at = view[wrote:], at + wrote
        self._end = at

    def restart(self) -> None:
        """Drop every byte."""
        os.ftruncate(self.descriptor, 0)
        self._end = 0

    def make_durable(self) -> None:
        """Every byte appended so far survives a power cut when this returns."""
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        """Close it; nothing is made durable by that."""
        os.close(self.descriptor)


@dataclass(frozen=True)
class Landed:
    """A file that lies at its place already: its sum and size, whether the page cache may have answered, and
    (expected, found) of a sum or size that the listing says otherwise; of another size no sum is taken."""

    sha256: str
    size: int
    cached: bool
    mismatch: tuple[str, str] | None


def look_at_landed(
    file: RemoteFile, path: Path, tick: Callable[[int], None] = lambda _: None
) -> Landed | None:
    """Hash what lies there, past the cache where that goes; None where nothing does. Raises StorageError."""
    try:
        about = os.lstat(path)
        if not stat.S_ISREG(about.st_mode):  # a link's target, or a fifo, is nothing that we put there
            raise StorageError(f"{path} is not a regular file; move it out of the landing")
        if file.size is not None and about.st_size != file.size:  # no need to read what others broke off
            sizes = f"{file.size} bytes", f"{about.st_size} bytes"
            return Landed("", about.st_size, cached=False, mismatch=sizes)
        found = hash_file(path, progress=tick)
        mismatch = None
        if file.size is not None and found.size != file.size:
            mismatch = f"{file.size} bytes", f"{found.size} bytes"
        elif file.sha256 is not None:
            mismatch = None if found.sha256 == file.sha256 else (file.sha256, found.sha256)
        elif file.git is not None and file.size is not None:
            with storage_errors("read", path), opened(path, os.O_RDONLY) as descriptor:
                mismatch = Content.of_prefix(file, descriptor, file.size, tick).mismatch(file)
        elif file.landed is not None and file.landed != found.sha256:  # it rotted, or others wrote it
            mismatch = file.landed, found.sha256
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Landed(found.sha256, found.size, found.cached, mismatch)
