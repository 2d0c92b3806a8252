"""Append-only logs: JSON lines, each chained to the last valid one by its hash.

A line's hash is the sha256 of its bytes without the newline; each line carries its predecessor's as `prev`.
A crash may leave part of a line, or zeros: the writer ends such a torn line with a newline before the next
entry, which chains past it to the last valid line. A line that does not parse and is not chained past, or a
chain that does not close, is damage: reading reports it and goes on behind it, never in silence. At the end
of a log a line without its newline is torn, one with it is damage unless a power cut left zeros in it: the
writer hands over both in one write. (Only one that dies exactly behind the newline which ends a torn line is
taken for damage too.)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.store.errors import storage_errors
from stoker.store.files import FILE_MODE, canonical_json, fsync_dir, opened, write_all
from stoker.store.parsing import parse_json

GENESIS = "0" * 64
_CHUNK = 1 << 16


@dataclass(frozen=True)
class LogReading:
    """A log as read: its valid entries with their hashes, torn lines counted, and damage in words."""

    entries: tuple[dict[str, Any], ...]
    hashes: tuple[str, ...]
    head: str
    torn: int
    damage: tuple[str, ...]


def read_log(path: Path, *, rotated: bool = False) -> LogReading:
    """Read a log; a missing file is an empty log.

    rotated=True is for logs written with rotate_bytes: the older file is read first, and what the first line
    chains to is not asked, for it was rotated away.
    """
    scan = LogScan(path, rotated=rotated)
    entries, hashes = [], []
    for entry, digest in scan:
        entries.append(entry)
        hashes.append(digest)
    return LogReading(tuple(entries), tuple(hashes), scan.head, scan.torn, scan.damage)


def read_log_data(data: bytes) -> LogReading:
    """Read a log that was never rotated from its bytes."""
    chain = _Chain(head=GENESIS)
    entries, hashes = [], []
    for line in data.split(b"\n"):
        entry = chain.take(line)
        if entry is not None:
            entries.append(entry)
            hashes.append(chain.head or GENESIS)
    return LogReading(tuple(entries), tuple(hashes), chain.head or GENESIS, chain.torn_lines, chain.findings)


class LogScan:
    """Goes once through a log, giving each valid entry with its hash and keeping none.

    `line` is the number of the line just given; `head`, `torn` and `damage` (see LogReading) are those of
    the lines behind it, of the whole log once it is through.
    """

    def __init__(self, path: Path, *, rotated: bool = False) -> None:
        self._files = _files(path, rotated)
        self._chain = _Chain(head=None if rotated else GENESIS)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], str]]:
        for line in _lines(self._files):
            entry = self._chain.take(line)
            if entry is not None:
                yield entry, self.head

    @property
    def line(self) -> int:
        return self._chain.number

    @property
    def head(self) -> str:
        return self._chain.head or GENESIS

    @property
    def torn(self) -> int:
        return self._chain.torn_lines

    @property
    def damage(self) -> tuple[str, ...]:
        return self._chain.findings


class ChainedLog:
    """The one writer of a log. Opening it reads the log, and what was read is durable from then on.

    `head` is the last valid line's hash (GENESIS when empty), `damage` what reading found:
    the owner of a log that is history looks at it before appending.
    With rotate_bytes the log keeps to that budget: at half of it the file becomes `<name>.1` (the older one
    goes) and a new one goes on with the chain.
    """

    def __init__(self, path: Path, *, rotate_bytes: int | None = None, mode: int = FILE_MODE) -> None:
        self.path = path
        self.damage: tuple[str, ...] = ()
        self.head = GENESIS
        self._last_line: bytes | None = None  # parsed when asked for: few ask, and some entries are large
        self._rotate_bytes = rotate_bytes
        self._mode = mode
        self._descriptor: int | None = None
        self._size = 0
        self._ends_in_newline = True
        self._open()

    @property
    def last(self) -> dict[str, Any] | None:
        """The last valid entry, None in an empty log."""
        return None if self._last_line is None else _parse(self._last_line)

    def append(self, body: Mapping[str, Any], *, durable: bool = True) -> str:
        """Append an entry and return its line's hash; it is durable on return unless durable=False.

        On failure (StorageError) the entry is not in the log, or torn, and the next append is not harmed.
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
        """Close the file; the next append opens and reads it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        with storage_errors("open", self.path):
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self.path, flags, self._mode)
            try:
                self._read(descriptor)
                # A predecessor may have died before its fsync; nobody may act on what a crash can take back.
                os.fsync(descriptor)
                fsync_dir(self.path.parent)
            except BaseException:
                os.close(descriptor)
                raise
        self._descriptor = descriptor
        return descriptor

    def _read(self, descriptor: int) -> None:
        rotated = self._rotate_bytes is not None
        chain = _Chain(head=None if rotated else GENESIS)
        self._last_line = None
        for line in _lines(_files(self.path, rotated)):
            if chain.take(line) is not None:
                self._last_line = line
        self.head = chain.head or GENESIS
        self.damage = chain.findings
        self._size = os.fstat(descriptor).st_size
        self._ends_in_newline = self._size == 0 or os.pread(descriptor, 1, self._size - 1) == b"\n"
        if self._size == 0:
            os.fchmod(descriptor, self._mode)

    def _undo(self, descriptor: int) -> None:
        # After a failed fsync the kernel may call lost pages clean: the line must not stay to be believed.
        with contextlib.suppress(OSError):  # then it stays as a torn or whole line, and is read again below
            os.ftruncate(descriptor, self._size)
        self.close()

    def _rotate_if_due(self) -> None:
        if self._rotate_bytes is None or self._size < self._rotate_bytes // 2:
            return
        with storage_errors("rotate", self.path):
            self.close()
            os.rename(self.path, _older(self.path))
            self._open()


@dataclass
class _Chain:
    """Follows a log line by line; head None means: believe what the first line says it chains to."""

    head: str | None
    torn: int = 0
    unparsed: int = 0  # lines that do not parse, since the last one that does
    number: int = 0
    damage: list[str] = field(default_factory=list)
    ended: bool = False  # whether the last line that came was empty: what stands behind the last newline is
    zeros: bool = False  # whether the last line that did not parse has some: a power cut left its blocks out

    @property
    def torn_lines(self) -> int:
        return self.torn + (0 if self.ended and not self.zeros else self.unparsed)

    @property
    def findings(self) -> tuple[str, ...]:
        if not (self.ended and self.unparsed) or self.zeros:
            return tuple(self.damage)
        return (
            *self.damage,
            f"line {self.number - 1} does not parse, and is whole: it was changed or overwritten",
        )

    def take(self, line: bytes) -> dict[str, Any] | None:
        self.number += 1
        self.ended = not line
        if not line:
            return None
        entry = _parse(line)
        if entry is None:
            self.unparsed += 1
            self.zeros = b"\0" in line
            return None
        if self.head is None or entry["prev"] == self.head:
            self.torn += self.unparsed
        else:
            where = f"line {self.number}"
            if self.unparsed:
                where += f" (behind {self.unparsed} that do not parse)"
            self.damage.append(
                f"{where} chains to {entry['prev'][:16]}, but the line before it is {self.head[:16]}: "
                "lines were changed or lost"
            )
        self.unparsed = 0
        self.head = _hash(line)
        return entry


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


def _files(path: Path, rotated: bool) -> list[Path]:
    return [_older(path), path] if rotated else [path]


def _lines(paths: list[Path]) -> Iterator[bytes]:
    # In chunks: a daemon opens logs of megabytes and must stay small.
    for path in paths:
        with (
            storage_errors("read", path),
            contextlib.suppress(FileNotFoundError),
            opened(path, os.O_RDONLY) as descriptor,
        ):
            begun: list[bytes] = []  # of a line whose end is not read yet, which may be long
            while chunk := os.read(descriptor, _CHUNK):
                *whole, rest = chunk.split(b"\n")
                if whole:
                    yield b"".join((*begun, whole[0]))
                    yield from whole[1:]
                    begun.clear()
                begun.append(rest)
            last = b"".join(begun)
            if last or path == paths[-1]:  # at the end also nothing: then the line before it is whole
                yield last
