"""Append-only logs: JSON lines, each chained to the last valid one by its hash.

A line's hash is the sha256 of its bytes without the newline; `prev` in a line is the hash of the line before.

A crash may leave part of a line, or zeros. The writer ends such a torn line with a newline before the next
entry, which chains to the last valid line. An unparsable line that no later line chains past is damage, and
so is a line with a wrong `prev`: the reader reports damage and continues with the next line.

At the end of a log, an unparsable line without its newline is torn. An unparsable line with its newline is
damage, except with zeros in it, which a power cut leaves: the writer writes a line and its newline in one
write. (A writer that dies just after the newline that ends a torn line looks like damage, too.)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stoker.store.errors import DataError, storage_errors
from stoker.store.files import FILE_MODE, canonical_json, fsync_dir, write_all
from stoker.store.record import parse_json, require_version

T = TypeVar("T")

GENESIS = "0" * 64


@dataclass(frozen=True)
class LogReading:
    """The content of a log: valid entries, their hashes, damage as messages."""

    entries: tuple[dict[str, Any], ...]
    hashes: tuple[str, ...]
    head: str
    damage: tuple[str, ...]


def read_log(log: Path | bytes, *, rotated: bool = False) -> LogReading:
    """Reads a log, or its bytes; a missing file is an empty log.

    rotated=True is for logs written with rotate_bytes: reads the older file first, and accepts any `prev` of
    the first line, whose predecessor was rotated away.
    """
    scan = LogScan(log, rotated=rotated)
    found = list(scan)
    entries, hashes = tuple(entry for entry, _ in found), tuple(digest for _, digest in found)
    return LogReading(entries, hashes, scan.head, scan.damage)


def read_entries(
    log: Path, parse: Callable[[dict[str, Any]], T], what: str
) -> tuple[list[T], tuple[str, ...]]:
    """Returns a log's entries, parsed, and its damage, as is an entry that is no `what`."""
    scan = LogScan(log)  # line by line: daemons read logs of megabytes
    entries, damage = list[T](), list[str]()
    for number, (body, _) in enumerate(scan):
        try:
            require_version(body, log)
            entries.append(parse(body))
        except (KeyError, TypeError, ValueError) as problem:
            damage.append(f"entry {number} is no {what}: {problem!r}")
    return entries, (*scan.damage, *damage)


class LogScan:
    """Iterates once over a log's valid entries with their hashes, and keeps none in memory.

    `line` is the number of the line just given, `last` its bytes and `head` its hash; `damage` (see
    LogReading) is complete once it is through.
    """

    def __init__(self, log: Path | bytes, *, rotated: bool = False) -> None:
        files = () if isinstance(log, bytes) else (_older(log), log) if rotated else (log,)
        self._lines = log.split(b"\n") if isinstance(log, bytes) else _lines(files)
        self._believe_first = rotated  # whatever the first line says that it chains to
        self.head = GENESIS
        self.line = 0
        self.last: bytes | None = None
        self.damage: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[tuple[dict[str, Any], str]]:
        line, unparsed, has_zeros = b"", 0, False
        for line in self._lines:
            self.line += 1
            entry = _parse(line)
            if entry is None:
                unparsed += bool(line)
                has_zeros = b"\0" in line if line else has_zeros
                continue
            if not self._believe_first and entry["prev"] != self.head:
                behind = f" (behind {unparsed} that do not parse)" if unparsed else ""
                self.damage += (
                    f"line {self.line}{behind} chains to {entry['prev'][:16]}, but the line before it is "
                    f"{self.head[:16]}: lines were changed or lost",
                )
            unparsed, self._believe_first = 0, False
            self.head, self.last = _hash(line), line
            yield entry, self.head
        if unparsed and not line and not has_zeros:  # nothing is behind the last newline: the line was whole
            changed = f"line {self.line - 1} does not parse, and is whole: it was changed or overwritten"
            self.damage += (changed,)


def lost_lines(path: Path | str, ours: Sequence[str], copy: Sequence[str]) -> range:
    """Returns the numbers, from 0, of the lines that a log lacks and its copy has, by the lines' hashes.

    Raises DataError where the two differ in a line: the code cannot decide which history the run followed.
    """
    common = min(len(ours), len(copy))
    for n in range(common):
        if ours[n] != copy[n]:
            raise DataError(
                f"{path}: line {n + 1} differs from the copy in the newest proven checkpoint: two histories; "
                "nothing is appended. Put back that copy, or move the checkpoints of the other history away"
            )
    return range(common, len(copy))


def restore_lines(path: Path, ours: Sequence[str], copy: Sequence[str], append: Callable[[int], str]) -> int:
    """Appends the lines that a log lacks and its copy has; returns how many. `append` writes line n."""
    lost = lost_lines(path, ours, copy)
    for n in lost:
        if append(n) != copy[n]:
            raise DataError(
                f"{path}: line {n + 1} cannot be written again as the checkpoint's copy has it: another "
                "version wrote it; put back the copy by hand"
            )
    return len(lost)


class ChainedLog:
    """The only writer of a log. Opening reads the log and makes its lines durable.

    `head` is the last valid line's hash (GENESIS when empty), `damage` the damage found at opening: the owner
    of a log that is history checks it before appending. `rotate_bytes` limits the size of both files: at half
    of it the file becomes `<name>.1`, in place of the older one, and a new file continues the chain.
    """

    def __init__(self, path: Path, *, rotate_bytes: int | None = None) -> None:
        self.path = path
        self.damage: tuple[str, ...] = ()
        self.head = GENESIS
        self._last_line: bytes | None = None  # parsed in `last`: few callers need it, some are large
        self._rotate_bytes = rotate_bytes
        self._descriptor: int | None = None
        self._size = 0
        self._ends_in_newline = True
        self._open()

    @property
    def last(self) -> dict[str, Any] | None:
        return None if self._last_line is None else _parse(self._last_line)

    def append(self, body: Mapping[str, Any], *, durable: bool = True) -> str:
        """Appends an entry, durable on return unless durable=False; returns its line's hash.

        After a failure (StorageError) the entry is missing or torn, and the next append works.
        """
        self._rotate_if_due()
        descriptor = self._open() if self._descriptor is None else self._descriptor
        line = canonical_json({**body, "prev": self.head})
        data = (b"" if self._ends_in_newline else b"\n") + line + b"\n"
        with storage_errors("append to", self.path):
            try:
                write_all(descriptor, data)
                if durable:
                    os.fdatasync(descriptor)
            except BaseException:
                self._undo(descriptor)
                raise
        self._size += len(data)
        self._ends_in_newline = True
        self.head = _hash(line)
        self._last_line = line
        return self.head

    def close(self) -> None:
        """Closes the file; the next append opens and reads it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        with storage_errors("open", self.path):
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self.path, flags, FILE_MODE)
            try:
                self._read(descriptor)
                # An earlier writer may have died before its fsync, and a crash could still undo its lines.
                os.fsync(descriptor)
                fsync_dir(self.path.parent)
            except BaseException:
                os.close(descriptor)
                raise
        self._descriptor = descriptor
        return descriptor

    def _read(self, descriptor: int) -> None:
        scan = LogScan(self.path, rotated=self._rotate_bytes is not None)
        for _ in scan:
            pass
        self._last_line, self.head, self.damage = scan.last, scan.head, scan.damage
        self._size = os.fstat(descriptor).st_size
        self._ends_in_newline = self._size == 0 or os.pread(descriptor, 1, self._size - 1) == b"\n"
        if self._size == 0:
            os.fchmod(descriptor, FILE_MODE)

    def _undo(self, descriptor: int) -> None:
        # After a failed fsync the kernel may call lost pages clean: the line must not remain.
        with contextlib.suppress(OSError):  # then the line remains, torn or whole, and the next open reads it
            os.ftruncate(descriptor, self._size)
        self.close()

    def _rotate_if_due(self) -> None:
        if self._rotate_bytes is None or self._size < self._rotate_bytes // 2:
            return
        with storage_errors("rotate", self.path):
            self.close()
            os.rename(self.path, _older(self.path))
            self._open()


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = parse_json(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("prev"), str) else None


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _lines(paths: Sequence[Path]) -> Iterator[bytes]:
    """The lines of the files, one by one: a daemon opens logs of megabytes and must stay small.

    The last one is empty where the log ends in a newline.
    """
    line = b"\n"
    for path in paths:
        with storage_errors("read", path), contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
            for line in stream:
                yield line.removesuffix(b"\n")
    if line.endswith(b"\n"):
        yield b""
