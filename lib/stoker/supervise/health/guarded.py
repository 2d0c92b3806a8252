"""Runs a trainer under its guard: starts both, reads their messages, asks for a stop, reports the end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.kit.exec import TRAINER_OUTPUT
from stoker.kit.guard import guard_command
from stoker.kit.handover import AdoptedChild
from stoker.kit.lock import Lock
from stoker.kit.loop import Waiter
from stoker.kit.process import ProcessId
from stoker.store.record import parse_json
from stoker.supervise.health.exits import GuardedEnd
from stoker.supervise.health.trainer_protocol import MOST_BYTES

GUARD, WORDS = "guard", "words"  # what is readable: the guard reported or ended; the trainer told something
MOST_DATAGRAMS = 4096  # at once: a trainer may send faster than they are read


class GuardedTrainer:
    """One launch: the guard process, its report pipe, and the socket that the trainer writes to.

    The guard takes over the trainer's lock: this process closes its descriptor at the guard's first report,
    and the guard keeps the lock until no process of the launch is left.
    """

    def __init__(
        self,
        guard: subprocess.Popen[bytes] | AdoptedChild,
        *,
        lock: Lock | None,
        reports: int,
        words: socket.socket,
        notify_socket: Path,
        waiter: Waiter,
    ) -> None:
        self.pid, self._guard, self._lock = guard.pid, guard, lock
        self.trainer_pid: int | None = None
        self._reports, self._socket, self._path = reports, words, notify_socket
        self._unread = b""
        self._end = GuardedEnd(None, None)
        self._waiter, self._filenos = waiter, (reports, words.fileno())
        for descriptor, tag in zip(self._filenos, (GUARD, WORDS), strict=True):
            waiter.add_fd(descriptor, tag)

    @classmethod
    def launched(
        cls,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        lock: Lock,
        stop_time_s: float,
        notify_socket: Path,
        waiter: Waiter,
        output: Path | None = None,
        directory: Path | None = None,
    ) -> GuardedTrainer:
        """Starts the command in `directory` under a guard, which keeps what it prints in `output`.

        Raises OSError, and leaves nothing open, where the system lacks what that takes.
        """
        notify_socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        notify_socket.unlink(missing_ok=True)  # left by an earlier supervisor
        with contextlib.ExitStack() as unless_started:
            words = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            unless_started.enter_context(words)
            words.bind(str(notify_socket))
            reports, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            unless_started.callback(os.close, reports)
            os.set_blocking(writing, True)
            guarded = guard_command(
                command,
                lock_fd=lock.fileno(),
                report_fd=writing,
                stop_time_s=stop_time_s,
                output=str(output or ""),
                directory=str(directory or ""),
            )
            # Where the trainer's output is to go, if not where the supervisor's goes.
            passed = os.environ.get(TRAINER_OUTPUT, "")
            stdout, stderr = map(int, passed.split(",")) if passed else (None, None)
            try:
                guard = subprocess.Popen(
                    guarded,
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=(lock.fileno(), writing),
                    start_new_session=True,
                )
            finally:
                os.close(writing)
            unless_started.pop_all()
        return cls(guard, lock=lock, reports=reports, words=words, notify_socket=notify_socket, waiter=waiter)

    @classmethod
    def adopted(
        cls,
        guard: ProcessId,
        body: Mapping[str, Any],
        descriptors: Mapping[str, int],
        *,
        notify_socket: Path,
        waiter: Waiter,
    ) -> GuardedTrainer:
        """Goes on with the launch that this process's image before began, from its `handed_over`."""
        words, reports = socket.socket(fileno=descriptors["words"]), descriptors["reports"]
        words.setblocking(False)
        child = AdoptedChild(guard)
        trainer = cls(
            child, lock=None, reports=reports, words=words, notify_socket=notify_socket, waiter=waiter
        )
        trainer._unread, trainer._end = body["unread"].encode(), GuardedEnd(**body["end"])
        return trainer

    @property
    def is_begun(self) -> bool:
        """Returns whether the guard has reported, and so holds the lock by itself."""
        return self._lock is None

    @property
    def descriptors(self) -> dict[str, int]:
        """The descriptors that this process's next image goes on with."""
        return {"reports": self._reports, "words": self._socket.fileno()}

    def handed_over(self) -> dict[str, Any]:
        """Returns what it needs beside them, once the launch `is_begun`."""
        return {"unread": self._unread.decode(), "end": vars(self._end)}

    def poll(self) -> GuardedEnd | None:
        """Reads the guard's reports; returns the end of the launch once the guard has exited, else None."""
        gone = self._guard.poll() is not None
        self._read_reports()
        if not gone:
            return None
        self._leave_lock()
        return self._end

    def drain(self) -> list[bytes]:
        """Returns the trainer's datagrams that have arrived, oldest first; of a flood, the first ones."""
        datagrams = list[bytes]()
        with contextlib.suppress(BlockingIOError):
            while len(datagrams) < MOST_DATAGRAMS:
                datagrams.append(self._socket.recv(MOST_BYTES + 1))
        return datagrams

    def stop(self) -> None:
        """Asks the guard to stop the tree: TERM, the stop time, KILL."""
        self._guard.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills a stuck guard; the kernel then sends its tree the parent-death signal."""
        self._guard.kill()

    def close(self) -> None:
        """Asks a trainer that still runs to save and end; closes pipe, socket and this process's lock.

        A live guard holds its own copy of the lock.
        """
        self.stop()
        for descriptor in self._filenos:
            self._waiter.remove_fd(descriptor)
        os.close(self._reports)
        self._socket.close()
        self._path.unlink(missing_ok=True)
        self._leave_lock()

    def _read_reports(self) -> None:
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._reports, 65536)  # more than all reports of a guard
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._leave_lock()
            report = parse_json(line)
            self.trainer_pid = report.get("started", self.trainer_pid)
            if how := report.get("exited"):
                self._end = GuardedEnd(
                    how.get("code"),
                    how.get("signal"),
                    int(report.get("peak_bytes", 0)),
                    int(report.get("left", 0)),
                )

    def _leave_lock(self) -> None:
        if self._lock is not None:
            self._lock.handed_over()
            self._lock = None
