"""A worker's process and its three pipes on the daemon's side; no call waits for the worker."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
from collections import deque
from collections.abc import Mapping
from typing import Any

from stoker.kit.exec import child_environment, launch_command
from stoker.kit.workers.child import LINE_LIMIT, LineBuffer
from stoker.store.errors import Transient

STDERR_LINES, STDERR_LINE_BYTES = 300, 4096  # enough for the stacks of a dozen threads
READS_AT_ONCE = 64  # of 64 KiB
# The system has no room for another process or its pipes: limits on processes, memory or descriptors.
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# Workers scale by processes; numpy's thread pool, which no worker uses, doubles the time to load numpy.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class WorkerNotStarted(Transient):
    """The system has no room for another process now."""


def launch(
    module: str, name: str, environ: Mapping[str, str], python: str, *, shares_stderr: bool = False
) -> subprocess.Popen[bytes]:
    """Starts `python -m module` with pipes, as a worker of this process."""
    try:
        return subprocess.Popen(
            launch_command([python, "-P", "-m", module], signal.SIGKILL),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if shares_stderr else subprocess.PIPE,
            bufsize=0,
            env=child_environment({**ONE_THREAD, **environ}),
            process_group=0,  # the daemon handles Ctrl-C; and a kill of the group ends the worker's helpers
        )
    except OSError as error:
        if error.errno not in _SHORTAGES:
            raise
        raise WorkerNotStarted(
            f"no process can be started for {name}: {error.strerror}; end others, or raise the limit "
            "on processes (TasksMax=, ulimit -u), memory or open files"
        ) from error


class Pipes:
    """Lines to and from a worker, and the last lines of its standard error."""

    def __init__(self, process: Any, *, pidfd: int, keep_open: bool) -> None:
        assert process.stdin and process.stdout
        self.stderr_tail: deque[str] = deque(maxlen=STDERR_LINES)
        self.keep_open = keep_open
        self._pidfd = pidfd
        self._unsent = bytearray()
        streams = (process.stdin, process.stdout, process.stderr)
        self._open = {stream.fileno(): stream for stream in streams if stream is not None}
        self._stdin, self._stdout, *self._stderr = self._open
        self._out_lines, self._err_lines = LineBuffer(LINE_LIMIT), LineBuffer(STDERR_LINE_BYTES)
        self._epoll = select.epoll()
        self._epoll.register(pidfd, select.EPOLLIN)
        for descriptor in (self._stdout, *self._stderr):
            os.set_blocking(descriptor, False)
            self._epoll.register(descriptor, select.EPOLLIN)
        os.set_blocking(self._stdin, False)

    def fileno(self) -> int:
        """Returns a descriptor that is readable whenever there is output to read, or the worker ended."""
        return self._epoll.fileno()

    def send(self, message: Mapping[str, object]) -> None:
        """Queues an input line; bytes that the pipe does not take now are written as the worker reads."""
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Writes as much as the pipe takes, and closes it after the last line unless it is kept open."""
        if self._stdin not in self._open:
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(self._stdin, self._unsent)]
        except BlockingIOError:
            with contextlib.suppress(FileExistsError):  # registered once: the worker's reading wakes us
                self._epoll.register(self._stdin, select.EPOLLOUT)
            return
        except BrokenPipeError:  # the worker ended or closed its input: its exit says why
            self._forget(self._stdin)
            return
        if self.keep_open:
            with contextlib.suppress(FileNotFoundError):
                self._epoll.unregister(self._stdin)
        else:
            self._forget(self._stdin)

    def read(self) -> list[bytes]:
        """Returns the lines of standard output since the last call; the stderr lines go to the tail."""
        for stderr in self._stderr:
            for line in self._read(stderr, self._err_lines):
                self.stderr_tail.append(line.decode("utf-8", "replace"))
        return self._read(self._stdout, self._out_lines)

    def finish(self) -> list[bytes]:
        """Returns the last lines of a worker that ended, including a line without a newline."""
        return self.read() + self._out_lines.finish()

    def close(self) -> None:
        """Closes everything but the epoll, which stays open and silent until this object is deleted.

        Its number must not become that of another worker while the daemon still waits on it.
        """
        for descriptor in list(self._open):
            self._forget(descriptor)
        self._epoll.unregister(self._pidfd)

    def _read(self, descriptor: int, lines: LineBuffer) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(READS_AT_ONCE):  # a worker that never pauses must not block the daemon
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
        with contextlib.suppress(FileNotFoundError):  # the input is registered only while the pipe is full
            self._epoll.unregister(descriptor)
        self._open.pop(descriptor).close()
