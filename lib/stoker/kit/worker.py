"""The one child-process class of a daemon: a task in, messages out, deadlines, a classified exit.

Start workers from the main thread only: their death signal comes when the thread that started them ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stoker.kit.lines import LineBuffer
from stoker.kit.poll import readable
from stoker.kit.worker_main import LINE_LIMIT, PARENT_VARIABLE

STDERR_LINES, STDERR_LINE_BYTES = 40, 4096
TERM_GRACE_S = 10.0  # after a deadline: from TERM to KILL
KILL_WAIT_S = 5.0  # how long stop() waits for a killed worker; one in uninterruptible I/O may take longer
READS_AT_ONCE = 64  # of 64 KiB
PIPE_BYTES = 1 << 20  # the kernel's default limit for an unprivileged user
# What the service manager and the tests tell the daemon is not for its children.
DAEMON_VARIABLES = {
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
    "STOKER_READY_FD",
}

ExitKind = Literal["finished", "failed", "killed", "timed_out"]


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended; killed = by a signal nobody here sent for a deadline, timed_out = past a deadline.

    max_rss_bytes is never below the size of the daemon that started it: Linux counts from before the exec.
    """

    kind: ExitKind
    code: int | None
    signal: int | None
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    max_rss_bytes: int
    wall_s: float = 0.0
    stderr_tail: tuple[str, ...] = ()

    def reason(self) -> str:
        """One phrase for an event or a log line."""
        if self.kind == "finished":
            return "finished"
        if self.kind == "timed_out":
            return f"no end or no word within its deadline ({self.wall_s:.0f} s)"
        if self.signal is not None:
            return f"killed by {signal_name(self.signal)}"
        return str(self.error["message"]) if self.error else f"exit code {self.code}"


def signal_name(signum: int) -> str:
    """SIGKILL for 9; real-time signals, which have no name, by number."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment for a child: without what only the daemon may answer, plus `extra`."""
    inherited = {name: value for name, value in os.environ.items() if name not in DAEMON_VARIABLES}
    return {**inherited, **(extra or {})}


def launch_command(command: list[str]) -> list[str]:
    """The command as a child of this process must be started: through the exec launcher.

    -P: a file in the working directory must not stand in for a module.
    """
    return [sys.executable, "-P", "-m", "stoker.kit.exec", str(os.getpid()), "--", *command]


def classify(
    status: int, *, timed_out: bool, result: dict[str, Any] | None, error: dict[str, Any] | None
) -> tuple[ExitKind, int | None, int | None]:
    """(kind, exit code, signal) of a wait status; exit 0 without a result is a failure."""
    if os.WIFSIGNALED(status):
        return ("timed_out" if timed_out else "killed"), None, os.WTERMSIG(status)
    code = os.WEXITSTATUS(status)
    if code == 0 and result is not None and error is None:
        return "finished", 0, None
    return ("timed_out" if timed_out else "failed"), code, None


class Worker:
    """A running worker; when `fileno()` is readable it spoke or ended: drain messages(), then poll()."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        name: str,
        *,
        deadline_s: float | None,
        quiet_deadline_s: float | None,
        keep_open: bool,
    ) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.name = name
        self.pid = process.pid
        self._process = process
        self._started = self._last_word = time.monotonic()
        self._deadline_s, self._quiet_deadline_s = deadline_s, quiet_deadline_s
        self._keep_open = keep_open
        self._kill_at: float | None = None
        self._timed_out = False
        self._exit: WorkerExit | None = None
        self._result: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._messages: list[dict[str, Any]] = []
        self._unsent = bytearray()
        self._stderr_tail: deque[str] = deque(maxlen=STDERR_LINES)
        self._open = {stream.fileno(): stream for stream in (process.stdin, process.stdout, process.stderr)}
        self._stdin, self._stdout, self._stderr = self._open
        self._out_lines, self._err_lines = LineBuffer(LINE_LIMIT), LineBuffer(STDERR_LINE_BYTES)
        self._pidfd = os.pidfd_open(process.pid)
        self._epoll = select.epoll()
        self._epoll.register(self._pidfd, select.EPOLLIN)
        for descriptor in (self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
            self._epoll.register(descriptor, select.EPOLLIN)
        os.set_blocking(self._stdin, False)

    @classmethod
    def start(
        cls,
        module: str,
        task: Mapping[str, Any],
        *,
        name: str,
        deadline_s: float | None,
        quiet_deadline_s: float | None = None,
        environ: Mapping[str, str] | None = None,
        pass_fds: Iterable[int] = (),
        keep_open: bool = False,
    ) -> Worker:
        """Start `python -m module` with the task as its first input line.

        deadline_s bounds its whole life, quiet_deadline_s the time between two messages; keep_open leaves its
        input open for send().
        """
        assert threading.current_thread() is threading.main_thread(), "workers are started by the main thread"
        process = subprocess.Popen(
            launch_command([sys.executable, "-P", "-m", module]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=tuple(pass_fds),
            env=child_environment({**(environ or {}), PARENT_VARIABLE: str(os.getpid())}),
            process_group=0,  # Ctrl-C is the daemon's to handle; and a worker's helpers are killed with it
        )
        worker = cls(
            process, name, deadline_s=deadline_s, quiet_deadline_s=quiet_deadline_s, keep_open=keep_open
        )
        worker.send(task)
        return worker

    def fileno(self) -> int:
        """A descriptor for the daemon's wait: readable whenever messages() or poll() has something to do."""
        return self._epoll.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue one more input line; what the pipe does not take now is written as the worker reads on."""
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(self._unsent) > 1 << 16 and self._stdin in self._open:
            with contextlib.suppress(
                OSError
            ):  # over the user's pipe budget: the usual 64 KiB do, more slowly
                fcntl.fcntl(self._stdin, fcntl.F_SETPIPE_SZ, min(len(self._unsent), PIPE_BYTES))
        self._flush_input()

    def close_input(self) -> None:
        """Tell a keep_open worker that nothing further will come."""
        self._keep_open = False
        self._flush_input()

    def messages(self) -> list[dict[str, Any]]:
        """What the worker said since the last call, without its result or error; never blocks."""
        self._pump()
        messages, self._messages = self._messages, []
        return messages

    def poll(self, now: float | None = None) -> WorkerExit | None:
        """The exit once it ended, else None; enforces the deadlines against now (monotonic seconds)."""
        if self._exit is not None:
            return self._exit
        self._pump()
        now = time.monotonic() if now is None else now
        if self._ended():
            return self._reap()
        if self._kill_at is not None:
            if now >= self._kill_at:
                self._signal_group(signal.SIGKILL)
        elif self._overdue(now):
            self._timed_out = True
            self.ask_to_stop(TERM_GRACE_S)
        return None

    def ask_to_stop(self, grace_s: float) -> None:
        """Send TERM; poll() sends KILL when grace_s seconds have passed."""
        if self._exit is None:
            self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + grace_s)
            self._signal_group(signal.SIGTERM)

    def stop(self, grace_s: float) -> WorkerExit | None:
        """TERM, KILL after grace_s, and wait; None only if the kernel does not let even a killed one go."""
        self.ask_to_stop(grace_s)
        give_up = time.monotonic() + grace_s + KILL_WAIT_S
        while (ended := self.poll()) is None and (now := time.monotonic()) < give_up:
            due = give_up if self._kill_at is None or self._kill_at < now else self._kill_at
            readable(self._epoll.fileno(), timeout_s=min(due - now, 0.5))
        return ended

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines of its standard error."""
        return tuple(self._stderr_tail)

    def _overdue(self, now: float) -> bool:
        if self._deadline_s is not None and now - self._started > self._deadline_s:
            return True
        return self._quiet_deadline_s is not None and now - self._last_word > self._quiet_deadline_s

    def _signal_group(self, signum: int) -> None:
        # Not reaped yet, so neither the pid nor the group can belong to anybody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def _ended(self) -> bool:
        return bool(readable(self._pidfd, timeout_s=0))

    def _reap(self) -> WorkerExit:
        self._signal_group(signal.SIGKILL)  # helpers it left behind in its group
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)  # Popen must not wait for this pid again
        self._pump()
        for line in self._out_lines.finish():
            self._take(line)
        if self._out_lines.dropped:
            self._stderr_tail.append(
                f"{self._out_lines.dropped} messages longer than {LINE_LIMIT} bytes dropped"
            )
        kind, code, signum = classify(
            status, timed_out=self._timed_out, result=self._result, error=self._error
        )
        self._exit = WorkerExit(
            kind=kind,
            code=code,
            signal=signum,
            result=self._result if kind == "finished" else None,
            error=self._error,
            max_rss_bytes=usage.ru_maxrss * 1024,
            wall_s=time.monotonic() - self._started,
            stderr_tail=self.stderr_tail,
        )
        self._close()
        return self._exit

    def _pump(self) -> None:
        """Move what the pipes hold, in both directions, without waiting."""
        self._flush_input()
        for line in self._read(self._stderr, self._err_lines):
            self._stderr_tail.append(line.decode("utf-8", "replace"))
        for line in self._read(self._stdout, self._out_lines):
            self._take(line)

    def _take(self, line: bytes) -> None:
        self._last_word = time.monotonic()
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            self._stderr_tail.append("not a message: " + line[:200].decode("utf-8", "replace"))
        elif isinstance(message.get("result"), dict) and "kind" not in message:
            self._result = message["result"]
        elif isinstance(message.get("error"), dict) and "kind" not in message:
            self._error = message["error"]
        else:
            self._messages.append(message)

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

    def _flush_input(self) -> None:
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
        if self._keep_open:
            with contextlib.suppress(FileNotFoundError):
                self._epoll.unregister(self._stdin)
        else:
            self._forget(self._stdin)

    def _forget(self, descriptor: int) -> None:
        with contextlib.suppress(FileNotFoundError):  # the input is registered only while it is full
            self._epoll.unregister(descriptor)
        self._open.pop(descriptor).close()

    def _close(self) -> None:
        for descriptor in list(self._open):
            self._forget(descriptor)
        self._epoll.unregister(self._pidfd)
        os.close(self._pidfd)
        # The epoll itself stays open, and silent, until this object goes: its number must not become another
        # worker's while the daemon still waits on it.
