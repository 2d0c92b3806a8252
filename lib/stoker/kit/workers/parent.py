"""The one child-process class of a daemon: a task in, messages out, deadlines, a classified exit.

Start workers from the main thread only: their death signal comes when the thread that started them ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any, Self

from stoker.kit.process.poll import readable
from stoker.kit.process.sampler import Sample, sample_process
from stoker.kit.workers.exit import Cause, WorkerExit, classify
from stoker.kit.workers.launch import WorkerNotStarted, launch, room_for
from stoker.kit.workers.pipes import Pipes
from stoker.store.parsing import parse_json

__all__ = ["Worker", "WorkerExit", "WorkerNotStarted"]

TERM_GRACE_S = 10.0  # after a deadline: from TERM to KILL
STACKS_S = 2.0  # from ABRT to KILL
KILL_WAIT_S = 5.0  # how long stop() waits for a killed worker; one in uninterruptible I/O may take longer
STALL_LOOKS = 8  # looks at its CPU time in a stall time: a halt is found that much late at most
STALL_CPU_S = 0.25  # less than that in a stall time is no work: a worker's own sampler uses a tenth of it


class Worker:
    """A running worker; when `fileno()` is readable it spoke or ended: drain messages(), then poll().

    A warm worker (of a module that takes many tasks, started with keep_open) ends its tasks by take_done()
    and is given the next; its deadlines stand still in between. `sample` is how it stood when it last told.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str, *, keep_open: bool) -> None:
        self.name = name
        self.pid = process.pid
        self.sample = Sample(0, 0.0)
        self.at_work = False
        self._process = process
        self._given = self._last_word = time.monotonic()
        self._quiet_s: float | None = None
        self._stall_s: float | None = None
        self._most_rss: int | None = None
        self._moved_at, self._moved_cpu_s = self._given, 0.0  # when it last worked, and its CPU time then
        self._looked_at = self._given
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._cause: Cause = ""
        self._exit: WorkerExit | None = None
        self._done: WorkerExit | None = None
        self._result: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._messages: list[dict[str, Any]] = []
        self._peak_rss = 0
        self._stacks = False
        self._pidfd = os.pidfd_open(process.pid)
        self._pipes = Pipes(process, pidfd=self._pidfd, keep_open=keep_open)

    @classmethod
    def start(
        cls,
        module: str,
        task: Mapping[str, Any] | None,
        *,
        name: str,
        quiet_deadline_s: float | None = None,
        stall_s: float | None = None,
        most_rss_bytes: int | None = None,
        environ: Mapping[str, str] | None = None,
        keep_open: bool = False,
        stacks: bool = False,
    ) -> Self:
        """Start `python -m module` with the task as its first input line; None for one that waits for a task.

        The bounds are as in give(); keep_open leaves its input open for send()
        and give(). stacks: past a deadline it is not asked to stop but ended by SIGABRT, so that its threads'
        stacks are the last that it writes to standard error. Raises WorkerNotStarted where the system has no
        room for another process.
        """
        assert threading.current_thread() is threading.main_thread(), "workers are started by the main thread"
        with room_for(name):
            process = launch(module, environ or {})
        worker = cls(process, name, keep_open=keep_open)
        if stacks:
            worker._stacks = True
            worker._pipes.keep_stacks()
        if task is not None:
            worker.give(
                task, quiet_deadline_s=quiet_deadline_s, stall_s=stall_s, most_rss_bytes=most_rss_bytes
            )
        return worker

    def give(
        self,
        task: Mapping[str, Any],
        *,
        name: str = "",
        quiet_deadline_s: float | None = None,
        stall_s: float | None = None,
        most_rss_bytes: int | None = None,
    ) -> None:
        """Hand over a task; poll() enforces its bounds.

        quiet_deadline_s bounds the time between two messages, stall_s the time with neither a message nor CPU
        time, most_rss_bytes its resident memory.
        """
        assert not self.at_work, f"{self.name} has a task"
        self.name, self.at_work = name or self.name, True
        self._quiet_s, self._stall_s, self._most_rss = quiet_deadline_s, stall_s, most_rss_bytes
        self._given = self._last_word = time.monotonic()
        self._result, self._peak_rss = None, 0
        self._pipes.send(task)

    @property
    def ending(self) -> bool:
        """Whether it was asked to stop, or is past a bound."""
        return self._kill_at is not None

    def fileno(self) -> int:
        """A descriptor for the daemon's wait: readable whenever messages() or poll() has something to do."""
        return self._pipes.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue one more input line; what the pipe does not take now is written as the worker reads on."""
        self._pipes.send(message)

    def close_input(self) -> None:
        """Tell a keep_open worker that nothing further will come."""
        self._pipes.keep_open = False
        self._pipes.flush()

    def messages(self) -> list[dict[str, Any]]:
        """What the worker said since the last call, without its result, error or samples; never blocks."""
        self._pump()
        messages, self._messages = self._messages, []
        return messages

    def has_news(self) -> bool:
        """Whether there is more to take than a sample: a message, a finished task, its end."""
        self._pump()
        return bool(self._messages or self._done) or self._exit is not None or self._ended()

    def take_done(self) -> WorkerExit | None:
        """How a warm worker's task finished, once; its process waits for the next."""
        self._pump()
        done, self._done = self._done, None
        return done

    def poll(self, now: float | None = None) -> WorkerExit | None:
        """The exit once it ended, else None; enforces the bounds against now (monotonic seconds)."""
        if self._exit is not None:
            return self._exit
        self._pump()
        now = time.monotonic() if now is None else now
        if self._ended():
            return self._reap()
        if self._kill_at is not None:
            if now >= self._kill_at:
                self._kill(now)
        elif self._is_too_big():
            self._cause = "over_memory"
            self._kill_at = now
            self._kill(now)  # at once: it grows on while it is asked
        elif cause := self._overdue(now):
            self._cause = cause
            self._end_overdue(now)
        return None

    def _end_overdue(self, now: float) -> None:
        if not self._stacks:
            self.ask_to_stop(TERM_GRACE_S)
            return
        self._kill_at = now + STACKS_S
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGABRT)

    def ask_to_stop(self, grace_s: float) -> None:
        """Send TERM; poll() sends KILL when grace_s seconds have passed."""
        if self._exit is None:
            self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + grace_s)
            self._signal_group(signal.SIGTERM)

    def stop(self, grace_s: float) -> WorkerExit | None:
        """TERM, KILL after grace_s, and wait; None only if the kernel does not let even a killed one go."""
        self.ask_to_stop(grace_s)
        return self.wait(time.monotonic() + grace_s + KILL_WAIT_S)

    def wait(self, until: float) -> WorkerExit | None:
        """Wait for the end of a worker that was asked to stop, until the monotonic clock says `until`."""
        while (ended := self.poll()) is None and (now := time.monotonic()) < until:
            due = until if self._kill_at is None or self._kill_at < now else self._kill_at
            readable(self._pipes.fileno(), timeout_s=min(due - now, 0.5))
        return ended

    def stuck_s(self, now: float | None = None) -> float:
        """For how many seconds the kernel has not let it go although it was killed; 0.0 for any other."""
        if self._killed_at is None or self._exit is not None:
            return 0.0
        return (time.monotonic() if now is None else now) - self._killed_at

    def forgive_silence(self) -> None:
        """Count its silence from now on: nobody listened until now."""
        self._last_word = time.monotonic()

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines of its standard error."""
        return tuple(self._pipes.stderr_tail)

    def _overdue(self, now: float) -> Cause:
        if not self.at_work:
            return ""
        if self._quiet_s is not None and now - self._last_word > self._quiet_s:
            return "silent"
        return "stalled" if self._stall_s is not None and self._is_stalled(now, self._stall_s) else ""

    def _is_stalled(self, now: float, stall_s: float) -> bool:
        if self._last_word > self._moved_at:
            self._moved_at, self._moved_cpu_s = self._last_word, sample_process(self.pid).cpu_s
            self._looked_at = self._moved_at
        if now - self._looked_at <= stall_s / STALL_LOOKS and now - self._moved_at <= stall_s:
            return False
        # From outside: in a call that never lets go of the interpreter it cannot tell, however hard it works.
        cpu_s = sample_process(self.pid).cpu_s
        self._looked_at = now
        if cpu_s - self._moved_cpu_s >= STALL_CPU_S:
            self._moved_at, self._moved_cpu_s = now, cpu_s
        return now - self._moved_at > stall_s

    def _is_too_big(self) -> bool:
        return self.at_work and self._most_rss is not None and self.sample.rss_bytes > self._most_rss

    def _kill(self, now: float) -> None:
        self._killed_at = self._killed_at or now
        self._signal_group(signal.SIGKILL)

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
        for line in self._pipes.finish():
            self._take(line)
        kind, code, signum = classify(
            status, timed_out=bool(self._cause), result=self._result, error=self._error
        )
        if kind == "timed_out" and self._cause == "over_memory":
            kind = "over_memory"
        self._exit = WorkerExit(
            kind=kind,
            code=code,
            signal=signum,
            result=self._result if kind == "finished" else None,
            error=self._error,
            max_rss_bytes=usage.ru_maxrss * 1024,
            wall_s=time.monotonic() - self._given,
            stderr_tail=self.stderr_tail,
            cause=self._cause if kind in ("timed_out", "over_memory") else "",
        )
        self._pipes.close()
        os.close(self._pidfd)
        return self._exit

    def _pump(self) -> None:
        """Move what the pipes hold, in both directions, without waiting."""
        self._pipes.flush()
        for line in self._pipes.read():
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message = parse_json(line)
        except ValueError:
            message = None
        if isinstance(message, dict) and message.get("kind") == "sample":
            self._take_sample(message)
            return
        self._last_word = time.monotonic()
        if not isinstance(message, dict):
            self._pipes.stderr_tail.append("not a message: " + line[:200].decode("utf-8", "replace"))
        elif isinstance(message.get("done"), dict) and "kind" not in message:
            self._take_result_of_task(message["done"])
        elif isinstance(message.get("result"), dict) and "kind" not in message:
            self._result = message["result"]
        elif isinstance(message.get("error"), dict) and "kind" not in message:
            self._error = message["error"]
        else:
            self._messages.append(message)

    def _take_sample(self, message: Mapping[str, Any]) -> None:
        self.sample = Sample(int(message["rss_bytes"]), float(message["cpu_s"]))
        self._peak_rss = max(self._peak_rss, self.sample.rss_bytes)

    def _take_result_of_task(self, result: dict[str, Any]) -> None:
        self.at_work = False
        if not self._pipes.keep_open:  # its last task: the process ends with it
            self._result = result
            return
        wall_s = time.monotonic() - self._given
        self._done = WorkerExit("finished", None, None, result, None, self._peak_rss, wall_s)
