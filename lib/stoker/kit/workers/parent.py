"""The child-process class of every daemon: a task in, messages out, deadlines, a classified exit.

Start workers from the main thread only: their death signal comes when the thread that started them ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stoker.kit.process import readable, sample_process, signal_name
from stoker.kit.workers.pipes import Pipes, WorkerNotStarted, launch
from stoker.store.record import parse_json

__all__ = ["Worker", "WorkerExit", "WorkerNotStarted"]

STACKS_S = 2.0  # from ABRT, on which a worker writes its threads' stacks to standard error, to KILL
# how long stop() waits for a killed worker; a worker in uninterruptible I/O may take longer
KILL_WAIT_S = 5.0
STALL_CPU_S = 0.25  # less CPU time than that within a stall time is no work
# The bound for which the daemon ended a worker: no message, neither message nor CPU time, too much memory,
# too much time.
Bound = Literal["silent", "stalled", "over_memory", "late"]
ExitKind = Literal["finished", "failed", "killed", Bound]


@dataclass(frozen=True)
class Bounds:
    """The bounds of a worker at its task; None means no bound.

    `silent_s` is the time between two messages, `stall_s` the time with neither a message nor CPU time,
    `limit_s` the whole time of the task.
    """

    silent_s: float | None = None
    stall_s: float | None = None
    most_rss_bytes: int | None = None
    limit_s: float | None = None


NO_BOUNDS = Bounds()


@dataclass(frozen=True)
class WorkerExit:
    """The end of a worker, or of a task of a reusable worker; `killed`: by a signal not sent by the daemon.

    `max_rss_bytes` is the highest value that the daemon saw.
    """

    kind: ExitKind
    code: int | None = None
    signal: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    max_rss_bytes: int = 0
    wall_s: float = 0.0
    stderr_tail: tuple[str, ...] = ()

    def reason(self) -> str:
        """Returns a phrase for an event or a log line."""
        match self.kind:
            case "finished":
                return "finished"
            case "over_memory":
                return f"it took {self.max_rss_bytes >> 20} MiB of memory, more than it may"
            case "late":
                return f"it took longer than it may ({self.wall_s:.0f} s)"
            case "stalled":
                return f"no message and no CPU time for too long ({self.wall_s:.0f} s at work)"
            case "silent":
                return f"no end or no message within its deadline ({self.wall_s:.0f} s)"
        if self.signal is not None:
            return f"killed by {signal_name(self.signal)}"
        return str(self.error["message"]) if self.error else f"exit code {self.code}"


class Worker:
    """A running worker; when `fileno()` is readable, a message or the end has come: call hear().

    A worker that takes many tasks (started with keep_open) ends each task through take_done() and then gets
    the next; its bounds hold only while it is at work.
    """

    def __init__(
        self,
        module: str,
        task: Mapping[str, Any],
        *,
        name: str,
        bounds: Bounds = NO_BOUNDS,
        environ: Mapping[str, str] | None = None,
        keep_open: bool = False,
        shares_stderr: bool = False,
        python: str = sys.executable,
    ) -> None:
        """Starts `python -m module` with the task as its first input line.

        keep_open leaves its input open for send() and give(). Raises WorkerNotStarted where the system has no
        room for another process.
        """
        assert threading.current_thread() is threading.main_thread(), "workers are started by the main thread"
        process = launch(module, name, environ or {}, python, shares_stderr=shares_stderr)
        self.pid = process.pid
        self.at_work = False
        self._process = process
        self._bounds = NO_BOUNDS
        self._given = self._last_word = time.monotonic()
        self._moved_at, self._moved_cpu_s = self._given, 0.0  # time and CPU time of its last sign of work
        self._peak_rss = 0
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._past: Bound | None = None
        self._exit: WorkerExit | None = None
        self._done: WorkerExit | None = None
        self._result: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._messages: list[dict[str, Any]] = []
        self._pidfd = os.pidfd_open(process.pid)
        self._pipes = Pipes(process, pidfd=self._pidfd, keep_open=keep_open)
        self.give(task, bounds=bounds)

    def give(self, task: Mapping[str, Any], *, bounds: Bounds = NO_BOUNDS) -> None:
        """Gives the worker a task; poll() enforces the bounds."""
        assert not self.at_work, "the worker has a task"
        self.at_work, self._bounds = True, bounds
        self._given = self._last_word = time.monotonic()
        self._result, self._peak_rss = None, 0
        self._pipes.send(task)

    @property
    def ending(self) -> bool:
        """Returns whether the worker was asked to stop, or exceeded a bound."""
        return self._kill_at is not None

    def fileno(self) -> int:
        """Returns a descriptor that is readable whenever messages() or poll() has something to do."""
        return self._pipes.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Queues an input line; bytes that the pipe does not take now are written as the worker reads."""
        self._pipes.send(message)

    def close_input(self) -> None:
        """Closes the input of a keep_open worker after the lines that are queued."""
        self._pipes.keep_open = False
        self._pipes.flush()

    def hear(self, now: float | None = None) -> tuple[list[dict[str, Any]], WorkerExit | None]:
        """Returns the messages since the last call, and the end of worker or task; enforces the bounds."""
        # In this order: messages that come with the end of a task belong to that task, and poll() reads, too.
        gone = self.poll(now)
        ended, self._done = self._done or gone, None
        return self.messages(), ended

    def messages(self) -> list[dict[str, Any]]:
        """Returns the messages since the last call, without result or error; never blocks."""
        self._pump()
        messages, self._messages = self._messages, []
        return messages

    def has_news(self) -> bool:
        """Returns whether a message, a finished task or an end is waiting; enforces the bounds."""
        return self.poll() is not None or bool(self._messages or self._done)

    def poll(self, now: float | None = None) -> WorkerExit | None:
        """Returns the exit after the worker ended, else None; enforces the bounds as of `now` (monotonic)."""
        if self._exit is not None:
            return self._exit
        self._pump()
        now = time.monotonic() if now is None else now
        if readable(self._pidfd, timeout_s=0):
            return self._reap()
        if self._kill_at is not None:
            if now >= self._kill_at:
                self._kill(now)
        elif self.at_work and (past := self._look(now)) is not None:
            self._past = past
            self._kill_at = now if past == "over_memory" else now + STACKS_S
            if past == "over_memory":
                self._kill(now)  # at once: its memory would grow during a grace time
            else:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self.pid, signal.SIGABRT)
        return None

    def ask_to_stop(self, grace_s: float) -> None:
        """Sends TERM; poll() sends KILL when grace_s seconds have passed."""
        if self._exit is None:
            self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + grace_s)
            self._signal_group(signal.SIGTERM)

    def wait(self, until: float) -> WorkerExit | None:
        """Waits until monotonic time `until` for the end of a worker that was asked to stop."""
        while (ended := self.poll()) is None and (now := time.monotonic()) < until:
            due = until if self._kill_at is None or self._kill_at < now else self._kill_at
            readable(self._pipes.fileno(), timeout_s=min(due - now, 0.5))
        return ended

    def stuck_s(self, now: float | None = None) -> float:
        """Returns the seconds for which the kernel has kept the worker after its KILL; else 0.0."""
        if self._killed_at is None or self._exit is not None:
            return 0.0
        return (time.monotonic() if now is None else now) - self._killed_at

    def forgive_silence(self) -> None:
        """Restarts the times of silence and of no work: the daemon, or the whole machine, was frozen."""
        self._last_word = self._moved_at = time.monotonic()

    def _look(self, now: float) -> Bound | None:
        """Returns the exceeded bound, measured from outside: a worker that holds the GIL cannot report."""
        sample, bounds = sample_process(self.pid), self._bounds
        self._peak_rss = max(self._peak_rss, sample.rss_bytes)
        if self._last_word > self._moved_at:
            self._moved_at, self._moved_cpu_s = self._last_word, sample.cpu_s
        if sample.cpu_s - self._moved_cpu_s >= STALL_CPU_S:
            self._moved_at, self._moved_cpu_s = now, sample.cpu_s
        if bounds.most_rss_bytes is not None and sample.rss_bytes > bounds.most_rss_bytes:
            return "over_memory"
        if bounds.limit_s is not None and now - self._given > bounds.limit_s:
            return "late"
        if bounds.silent_s is not None and now - self._last_word > bounds.silent_s:
            return "silent"
        return "stalled" if bounds.stall_s is not None and now - self._moved_at > bounds.stall_s else None

    def _kill(self, now: float) -> None:
        self._killed_at = self._killed_at or now
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, signum: int) -> None:
        # Not reaped yet, so neither the pid nor the group can belong to another process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def _reap(self) -> WorkerExit:
        self._signal_group(signal.SIGKILL)  # helpers that the worker left in its group
        status = self._process.wait()
        for line in self._pipes.finish():
            self._take(line)
        is_finished = status == 0 and self._result is not None and self._error is None
        kind: ExitKind = "finished" if is_finished else self._past or ("killed" if status < 0 else "failed")
        self._exit = WorkerExit(
            kind=kind,
            code=None if status < 0 else status,
            signal=-status if status < 0 else None,
            result=self._result if is_finished else None,
            error=self._error,
            max_rss_bytes=self._peak_rss,
            wall_s=time.monotonic() - self._given,
            stderr_tail=tuple(self._pipes.stderr_tail),
        )
        self._pipes.close()
        os.close(self._pidfd)
        return self._exit

    def _pump(self) -> None:
        """Moves bytes through the pipes, in both directions, without waiting."""
        self._pipes.flush()
        for line in self._pipes.read():
            self._take(line)

    def _take(self, line: bytes) -> None:
        self._last_word = time.monotonic()
        try:
            message = parse_json(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            self._pipes.stderr_tail.append("not a message: " + line[:200].decode("utf-8", "replace"))
        elif "kind" in message:
            self._messages.append(message)
        elif "error" in message:
            self._error = message["error"]
        elif "done" in message and self._pipes.keep_open:
            self.at_work = False
            wall_s = time.monotonic() - self._given
            self._done = WorkerExit("finished", result=message["done"], wall_s=wall_s)
        else:  # the process ends with this message
            self._result = message.get("done", message.get("result"))
