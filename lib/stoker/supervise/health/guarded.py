"""A trainer under its guard: start it, hear how it ends, ask it to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.kit.lock import Lock
from stoker.store.parsing import parse_json


@dataclass(frozen=True)
class GuardedEnd:
    """How the trainer ended by its guard's word; `code` and `signum` are None when the guard was lost."""

    code: int | None
    signum: int | None


class GuardedTrainer:
    """One launch: the guard process and its report pipe.

    The trainer's lock goes over to the guard: our own descriptor is closed at the guard's first word, and the
    guard keeps the lock until nothing of the launch is left.
    """

    def __init__(
        self, command: Sequence[str], *, environ: Mapping[str, str], lock: Lock, stop_time_s: float
    ) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writing, True)
        try:
            self._guard = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "stoker.kit.guard",
                    "--parent",
                    str(os.getpid()),
                    "--lock-fd",
                    str(lock.fileno()),
                    "--report-fd",
                    str(writing),
                    "--stop-time",
                    str(stop_time_s),
                    "--",
                    *command,
                ],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                pass_fds=(lock.fileno(), writing),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        self._reports = reading
        self._lock: Lock | None = lock
        self._unread = b""
        self._end = GuardedEnd(None, None)
        self.trainer_pid: int | None = None

    @property
    def pid(self) -> int:
        """The guard's pid."""
        return self._guard.pid

    def fileno(self) -> int:
        """The report pipe, readable when the guard says something or is gone."""
        return self._reports

    def poll(self) -> GuardedEnd | None:
        """Take in what the guard said; the end of the launch once the guard itself is gone, else None."""
        gone = self._guard.poll() is not None
        self._read_reports()
        if not gone:
            return None
        self._keep_lock_no_longer()
        return self._end

    def stop(self) -> None:
        """Ask the guard to stop the tree: TERM, the stop time, KILL."""
        if self._guard.poll() is None:
            self._guard.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End a guard that does not answer: its tree then gets its death signal from the kernel."""
        if self._guard.poll() is None:
            self._guard.kill()

    def close(self) -> None:
        """Close the report pipe, and our copy of the lock: the guard, while it lives, holds its own."""
        os.close(self._reports)
        self._keep_lock_no_longer()

    def _read_reports(self) -> None:
        while True:
            try:
                data = os.read(self._reports, 65536)
            except BlockingIOError:
                return
            if not data:
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._reported(parse_json(line))

    def _reported(self, report: Mapping[str, Any]) -> None:
        self._keep_lock_no_longer()
        if "started" in report:
            self.trainer_pid = int(report["started"])
        if "exited" in report:
            how = report["exited"]
            self._end = GuardedEnd(how.get("code"), how.get("signal"))

    def _keep_lock_no_longer(self) -> None:
        if self._lock is not None:
            self._lock.handed_over()
            self._lock = None
