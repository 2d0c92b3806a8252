"""A worker's three pipes as its daemon holds them: nothing here ever waits for the worker."""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections import deque
from collections.abc import Mapping
from typing import Any

from stoker.kit.process.lines import LineBuffer
from stoker.kit.workers.child import LINE_LIMIT

STDERR_LINES, STDERR_LINE_BYTES = 300, 4096  # room for the stacks of a dozen threads
READS_AT_ONCE = 64  # of 64 KiB


class Pipes:
    """Lines in, lines out, the last lines of standard error; readable by `fileno()` on a word or an end."""

    def __init__(self, process: Any, *, pidfd: int, keep_open: bool) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.stderr_tail: deque[str] = deque(maxlen=STDERR_LINES)
        self.keep_open = keep_open
        self._pidfd = pidfd
        self._unsent = bytearray()
        self._open = {stream.fileno(): stream for stream in (process.stdin, process.stdout, process.stderr)}
        self._stdin, self._stdout, self._stderr = self._open
        self._out_lines, self._err_lines = LineBuffer(LINE_LIMIT), LineBuffer(STDERR_LINE_BYTES)
        self._epoll = select.epoll()
        self._epoll.register(pidfd, select.EPOLLIN)
        for descriptor in (self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
            self._epoll.register(descriptor, select.EPOLLIN)
        os.set_blocking(self._stdin, False)

    def fileno(self) -> int:
        """A descriptor that is readable whenever there is something to read, or the worker ended."""
        return self._epoll.fileno()

    def send(self, message: Mapping[str, object]) -> None:
        """Queue one more input line; what the pipe does not take now is written as the worker reads on."""
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes, and close it after the last line unless it is kept open."""
        if self._stdin not in self._open:
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(self._stdin, self._unsent)]
        except BlockingIOError:
            with contextlib.suppress(FileExistsError):  # the reader's progress wakes us, once is enough
                self._epoll.register(self._stdin, select.EPOLLOUT)
            return
        except BrokenPipeError:  # it ended or closed its input: its exit tells the story
            self._forget(self._stdin)
            return
        if self.keep_open:
            with contextlib.suppress(FileNotFoundError):
                self._epoll.unregister(self._stdin)
        else:
            self._forget(self._stdin)

    def read(self) -> list[bytes]:
        """The lines it has said since the last call; those of standard error go to the tail."""
        for line in self._read(self._stderr, self._err_lines):
            self.stderr_tail.append(line.decode("utf-8", "replace"))
        return self._read(self._stdout, self._out_lines)

    def finish(self) -> list[bytes]:
        """The last words of a worker that ended, those without a newline included."""
        lines = self.read() + self._out_lines.finish()
        if self._out_lines.dropped:
            self.stderr_tail.append(
                f"{self._out_lines.dropped} messages longer than {LINE_LIMIT} bytes dropped"
            )
        return lines

    def close(self) -> None:
        """Close everything but the epoll, which stays, and silent, until this object goes: its number must
        not become another worker's while the daemon still waits on it."""
        for descriptor in list(self._open):
            self._forget(descriptor)
        self._epoll.unregister(self._pidfd)

    def _read(self, descriptor: int, lines: LineBuffer) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(READS_AT_ONCE):  # a worker that never pauses must not hold the daemon
            if descriptor not in self._open:
                break
            try:
                data = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                self._forget(descriptor)
                break
            found += lines.feed(data)
        return found

    def _forget(self, descriptor: int) -> None:
        with contextlib.suppress(FileNotFoundError):  # the input is registered only while it is full
            self._epoll.unregister(descriptor)
        self._open.pop(descriptor).close()
