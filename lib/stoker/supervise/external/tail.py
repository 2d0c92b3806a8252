"""The newest pieces of a growing output file, a bounded part at each look."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

MOST_BYTES = 64 << 10  # of an output that are read at a look; what came before them is passed over
MOST_PIECE = 4096  # bytes of a piece that are kept until its end
MARK_BYTES = 64  # before the place where the next look begins: the guard moves what it keeps
_ENDS = re.compile(rb"[\r\n]+")


class Tail:
    """Follows a file that grows and that the guard shortens from time to time (`kit.relay.KeptOutput`)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at, self._mark, self._rest = 0, b"", b""
        self._state = (0, 0)  # size and time of the last change, as last seen

    @property
    def changed_at(self) -> float:
        """Unix time at which what was last read was written; 0 before anything was."""
        return self._state[1] / 1e9

    def poll(self, *, is_last: bool = False) -> list[str]:
        """Returns the pieces that have ended since the last look, in order; with `is_last` also the unended.

        A piece ends with a line feed or a carriage return. Bytes that are no text become U+FFFD. Returns
        nothing while the file is missing or as before, and leaves out a piece whose begin it does not have.
        """
        data = b""
        with contextlib.suppress(OSError), self._path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if (status.st_size, status.st_mtime_ns) != self._state:
                self._state = status.st_size, status.st_mtime_ns
                data = self._new(stream.fileno(), status.st_size)
        *pieces, rest = _ENDS.split(self._rest + data)
        self._rest = rest[:MOST_PIECE]
        if is_last:
            pieces, self._rest = [*pieces, self._rest], b""
        return [piece[:MOST_PIECE].decode("utf-8", "replace") for piece in pieces if piece]

    def _new(self, descriptor: int, size: int) -> bytes:
        """Returns the bytes since the last look, or the last ones from the first whole piece on."""
        before = len(self._mark)
        if before <= self._at <= size <= self._at + MOST_BYTES:
            data = os.pread(descriptor, before + MOST_BYTES, self._at - before)
            if data[:before] == self._mark:
                return self._went_on(self._at - before, data)[before:]
        start = max(0, size - MOST_BYTES)
        data = self._went_on(start, os.pread(descriptor, MOST_BYTES, start))
        first = _ENDS.search(data)
        self._rest = b""
        return data if not start else data[first.end() :] if first else b""

    def _went_on(self, start: int, data: bytes) -> bytes:
        self._at, self._mark = start + len(data), data[-MARK_BYTES:]
        return data


class TooSlowError(Exception):
    """An expression takes too long."""


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raises TooSlowError in the main thread once this process has used so many CPU seconds inside.

    The engine of `re` looks for signals while it goes back and forth in a text, so this ends also an
    expression that would take for ever.
    """

    def end(signal_number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGVTALRM, end)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    finally:
        signal.signal(signal.SIGVTALRM, before)
