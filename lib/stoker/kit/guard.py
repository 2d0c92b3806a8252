"""The process between a supervisor and its trainer: prevents orphans and a second trainer of the same run.

    python -m stoker.kit.guard PPID LOCK_FD REPORT_FD STOP_TIME OUTPUT DIRECTORY -- CMD...

The guard is the subreaper of every process that CMD starts, in any session, and keeps the lock's descriptor
open until its tree is empty. On SIGTERM, when its parent ends, and after CMD ends, the guard stops the
processes that are left: TERM to each program, KILL to each process after the stop time, repeated until the
last process is reaped. A program's own workers (forks without an exec) get theirs once it has ended.

What CMD's tree prints is kept in the file OUTPUT and passed on (see relay); with an empty OUTPUT it
prints to the guard's own stdout and stderr. CMD runs in DIRECTORY, or where the guard does if that is empty.

The guard writes JSON lines: {"guard":"ready","pid"}, {"started":pid,"start_ticks"},
{"exited":{"code"}|{"signal"},"peak_bytes","left"}, {"empty":true}; `left` counts the processes that CMD left
behind, `peak_bytes` is the largest resident size of a
process that was reaped by then. The lines need no reader: a full or closed pipe never delays the guard. Exit
code: CMD's, or 128 + its signal; 75 when the parent was gone, or a stop was
requested, before CMD could start.

Standard library only, and small: the guard must outlive the failures that it guards against.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from stoker.kit.exec import (
    end_first_when_memory_is_short,
    launch_command,
    set_child_subreaper,
    set_death_signal,
)
from stoker.kit.process import ProcessId, family, readable, signal_process
from stoker.kit.relay import STDERR, STDOUT, relays

USAGE = "usage: python -m stoker.kit.guard PPID LOCK_FD REPORT_FD STOP_TIME OUTPUT DIRECTORY -- CMD [ARG...]"
IDLE_S = 5.0  # between two checks of the parent, in case its death signal gets lost
STOPPING_S = 0.2  # between two searches for processes that have not had their TERM
KILLING_S = 0.05  # between two rounds of KILL
OUTPUT_S = 2.0  # for the last of the output, once its writers have ended


class Guard:
    """One guarded command, from its start to the end of the last process of its tree."""

    def __init__(
        self,
        command: list[str],
        report_fd: int,
        *,
        lock_fd: int,
        parent: int,
        stop_time_s: float,
        output: str = "",
        directory: str = "",
    ) -> None:
        self._command, self._directory = command, directory
        self._report_fd, self._lock_fd = report_fd, lock_fd
        self._parent = parent
        self._stop_time_s = stop_time_s
        self._child = 0
        self._exit_code = 0
        self._kill_at: float | None = None  # set while stopping
        self._asked: set[ProcessId] = set()  # processes that had their TERM
        self._wake = _wake_on_signals(self._on_stop)
        self._stop_asked = False
        self._relays = relays(output) if output else []

    def run(self) -> int:
        """Guards the command; returns the exit code once no process of the tree is left."""
        self._report(guard="ready", pid=os.getpid())
        if self._stop_asked or self._parent_is_gone():
            print("stoker.kit.guard: no supervisor to work for; nothing was started", file=sys.stderr)
            return 75
        self._child = self._start()
        while self._reap():
            if self._stop_asked or self._parent_is_gone():
                self._begin_to_stop()
            if self._kill_at is not None:
                self._stop_some(self._kill_at)
            self._wait()
        os.close(self._lock_fd)  # before the report: a reader that acts on the report must find the lock free
        self._report(empty=True)
        for relay in self._relays:
            relay.finish(OUTPUT_S)
        return self._exit_code

    def _report(self, **message: Any) -> None:
        """Writes a report line; all four lines of a launch fit into an empty pipe, even without a reader."""
        with contextlib.suppress(OSError):
            os.write(self._report_fd, json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def _start(self) -> int:
        # Through the exec launcher: if this guard is killed, the kernel asks the trainer to save and end.
        writing = {relay.passes_to: relay.writing for relay in self._relays}
        streams = (STDOUT, STDERR) if writing else ()
        into = [(os.POSIX_SPAWN_DUP2, writing.get(one, writing[STDERR]), one) for one in streams]
        command = launch_command(self._command, directory=self._directory)
        child = os.posix_spawn(sys.executable, command, os.environ, setsigmask=[], file_actions=into)
        end_first_when_memory_is_short(str(child))
        for relay in self._relays:
            relay.begin()
        self._report(started=child, start_ticks=ProcessId.of(child).start_ticks)
        return child

    def _on_stop(self, _signum: int, _frame: FrameType | None) -> None:
        self._stop_asked = True

    def _parent_is_gone(self) -> bool:
        return os.getppid() != self._parent

    def _reap(self) -> bool:
        """Reaps every dead child; False when no child is left, for a subreaper also no descendant."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child:
                self._child_ended(status)

    def _child_ended(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        how = {"code": code} if code >= 0 else {"signal": -code}
        self._exit_code = code if code >= 0 else 128 - code
        peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        left = len(family(os.getpid()))
        self._report(exited=how, peak_bytes=peak_kib * 1024, left=left)
        self._begin_to_stop()  # its remaining processes serve no trainer any more

    def _begin_to_stop(self) -> None:
        """Starts the stop time; a second call changes nothing."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._stop_time_s

    def _stop_some(self, kill_at: float) -> None:
        """Signals the processes that exist now; processes started meanwhile get theirs in the next round."""
        kill = time.monotonic() >= kill_at
        for process, parent in family(os.getpid()).items():
            if not kill and parent != os.getpid() and process.is_part():
                continue  # a part of its parent: a training that lost a data loader's worker fails
            with contextlib.suppress(PermissionError):  # a set-uid helper: its parent's end must do
                if kill:
                    signal_process(process, signal.SIGKILL)
                elif process not in self._asked:
                    self._asked.add(process)
                    signal_process(process, signal.SIGTERM)
                    signal_process(process, signal.SIGCONT)  # a stopped process gets TERM when it runs

    def _wait(self) -> None:
        """Waits until a child ends, a signal comes, or the next round is due."""
        timeout = IDLE_S
        if self._kill_at is not None:
            left = self._kill_at - time.monotonic()
            timeout = KILLING_S if left <= 0 else min(STOPPING_S, left)
        readable(self._wake, timeout_s=timeout)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass


def _wake_on_signals(on_stop: Any) -> int:
    """Returns a descriptor that is readable after a signal; the handlers do almost nothing.

    exec resets the handlers.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, on_stop)
    return reading


def guard_command(
    command: Sequence[str],
    *,
    lock_fd: int,
    report_fd: int,
    stop_time_s: float,
    output: str = "",
    directory: str = "",
) -> list[str]:
    """Returns the command that starts `command` under a guard, a child of this process.

    -P: a file in the working directory must not replace a module.
    """
    of_guard = map(str, (os.getpid(), lock_fd, report_fd, stop_time_s, output, directory))
    return [sys.executable, "-P", "-m", "stoker.kit.guard", *of_guard, "--", *command]


def main(argv: list[str]) -> int:
    """Runs the guard; returns its exit code."""
    if len(argv) < 8 or argv[6] != "--":
        print(USAGE, file=sys.stderr)
        return 64
    parent, lock_fd, report_fd = map(int, argv[:3])
    stop_time_s, output, directory, command = float(argv[3]), argv[4], argv[5], argv[7:]
    for descriptor in (lock_fd, report_fd):
        os.set_inheritable(descriptor, False)  # for the guard alone: the trainer must not hold its own lock
    os.set_blocking(report_fd, False)
    if os.getsid(0) != os.getpid():
        os.setsid()
    guard = Guard(
        command,
        report_fd,
        lock_fd=lock_fd,
        parent=parent,
        stop_time_s=stop_time_s,
        output=output,
        directory=directory,
    )
    set_child_subreaper()
    set_death_signal(signal.SIGTERM)
    return guard.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
