"""What a guarded tree prints: kept in a file, passed on, and never a reason for the tree to wait.

The guard imports this module: standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import select
import stat
import sys
import threading
import time

from stoker.systemd.journal import JournalOutput, is_journal

STDOUT, STDERR = 1, 2
HEAD_BYTES, TAIL_BYTES = 256 << 10, 1 << 20  # of an output that are kept at least
PIPE_BYTES = 1 << 20  # that may wait while the disk is slow
PIECE_BYTES = 4096 - 256  # with a note before it no more than a pipe takes without waiting (PIPE_BUF)


class KeptOutput:
    """A file with the first and the last bytes of an output: plain text at any moment, at most 2.3 MB.

    Opened by the first write: a disk that hangs must not hold up the guard. Several threads may write.
    """

    def __init__(self, path: str) -> None:
        self.path, self._descriptor, self._lock = path, -1, threading.Lock()
        self._size, self._tail_at, self._left_out = 0, HEAD_BYTES, 0

    def write(self, data: bytes) -> None:
        """Appends; what a full disk does not take is left out."""
        with self._lock:
            self._write(data)

    def _write(self, data: bytes) -> None:
        try:
            if self._descriptor < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self._descriptor = os.open(self.path, flags, 0o640)
            written = os.pwrite(self._descriptor, data, self._size)
            self._size, self._left_out = self._size + written, self._left_out + len(data) - written
            if self._size > HEAD_BYTES + 2 * TAIL_BYTES:
                self._shorten()
        except OSError:
            self._left_out += len(data)

    def _shorten(self) -> None:
        """Moves the tail forward, over what was printed before it."""
        tail = os.pread(self._descriptor, TAIL_BYTES, self._size - TAIL_BYTES)
        self._left_out += self._size - len(tail) - self._tail_at
        note = b"\n[stoker: %d bytes are left out here]\n" % self._left_out
        self._tail_at = HEAD_BYTES + len(note)
        self._size = self._tail_at + len(tail)
        os.pwrite(self._descriptor, note + tail, HEAD_BYTES)
        os.ftruncate(self._descriptor, self._size)


class PassedOutput:
    """Another writer's descriptor, taken over without changing it: what has no room there now is dropped."""

    def __init__(self, descriptor: int, kept_at: str) -> None:
        self._descriptor, self._kept_at, self._dropped = descriptor, kept_at, 0
        with contextlib.suppress(OSError):  # a terminal of another user, or closed
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
                # Opened again, not to wait is ours alone: O_NONBLOCK belongs to what all holders share.
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._descriptor = os.open(f"/proc/self/fd/{descriptor}", flags)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)

    def end(self) -> None:
        """Does nothing: all that there was room for is passed on."""

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            note = b""
            if self._dropped:
                note = f"\n[stoker: {self._dropped} bytes are only in {self._kept_at}]\n".encode()[-256:]
            if self._send(note + piece):
                self._dropped = 0
            else:
                self._dropped += len(piece)

    def _send(self, data: bytes) -> bool:
        """Sends all of at most 4,096 bytes, or returns False; a socket or pipe that is ready has the room."""
        try:
            return bool(self._poll.poll(0)) and os.write(self._descriptor, data) == len(data)
        except OSError:  # nobody reads it any more, or another writer was quicker
            return False


class Relay:
    """A thread that reads a pipe to its end, so that neither disk nor terminal hold up the guard."""

    def __init__(self, kept: KeptOutput, passes_to: int) -> None:
        self._kept, self.passes_to = kept, passes_to
        self._reading, self.writing = os.pipe()
        with contextlib.suppress(OSError):  # more than this user may have
            fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Reads from now on; the tree has the pipe's other end."""
        os.close(self.writing)
        self._thread.start()

    def finish(self, patience_s: float) -> None:
        """Waits for the last bytes of a tree that has ended."""
        self._thread.join(patience_s)

    def _run(self) -> None:
        try:
            passed: JournalOutput | PassedOutput
            if is_journal(self.passes_to):
                passed = JournalOutput(self._kept.path, os.environ, time.monotonic)
            else:
                passed = PassedOutput(self.passes_to, self._kept.path)
            while data := os.read(self._reading, 1 << 16):
                self._kept.write(data)
                passed.write(data)
            passed.end()
        finally:
            os.close(self._reading)  # whatever ended this: no writer waits for it


def relays(path: str) -> list[Relay]:
    """Returns the relays of a tree's output, by the descriptors of this process that they pass it to.

    One for both streams, which keeps their order, unless these go to different places.
    """
    kept = KeptOutput(path)
    with contextlib.suppress(OSError):  # a closed one
        if not os.path.samestat(os.fstat(STDOUT), os.fstat(STDERR)):
            return [Relay(kept, STDOUT), Relay(kept, STDERR)]
    return [Relay(kept, STDERR)]


class _Tolerant(io.FileIO):
    def write(self, data: object, /) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        with contextlib.suppress(BrokenPipeError):
            return super().write(view) or 0
        return view.nbytes


def tolerate_lost_reader() -> None:
    """Has this process's prints go nowhere once their reader has ended: a save goes before a word on it."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = _Tolerant(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
        setattr(sys, name, stream)
