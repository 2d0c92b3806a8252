"""Records the memory of a command's processes, or of a process and its children, from start to end."""

from __future__ import annotations

import abc
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stoker.kit.exec import launch_command, set_child_subreaper
from stoker.kit.loop import Waiter
from stoker.kit.process import (
    ProcessId,
    children_tree,
    own_peak_rss,
    reap_strays,
    signal_name,
    signal_process,
)
from stoker.memory.inside import GpuMemory, LinePipe, PythonReports, python_environment
from stoker.memory.recording import NOTE_CHARS, Kind, RecordingFile, Row
from stoker.memory.signal_fd import Arrived, SignalFd
from stoker.memory.tree_memory import PssWatch, tree_memory
from stoker.observe.machine import MemoryWatch
from stoker.store.errors import UnavailableError
from stoker.store.record import utc_now

MARK_VARIABLE = "STOKER_MARK_FD"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
OTHERS = (signal.SIGUSR1, signal.SIGUSR2)  # for the command alone: whoever does not expect them dies of them
KILL_S = 10.0  # from a second signal that ends, or from the command's own end after the first, to KILL
FRESH_S = 0.1  # figures so old serve for a mark, however many come
LAUNCHER, LAUNCH_S, LAUNCH_LOOK_S = b"\0stoker.kit.exec\0", 5.0, 0.002
ENDING_LOOK_S = 0.1  # between two looks whether the tree is empty


def say(text: str) -> None:
    """Writes a line to standard error; a terminal that is gone is no reason to end."""
    try:
        os.write(2, f"stoker: {text}\n".encode("utf-8", "replace"))
    except OSError:
        return


class Recorder(abc.ABC):
    """What both kinds of recording have in common: the waiting, the sampling, the rows."""

    def __init__(self, file: RecordingFile, every_s: float, what: str) -> None:
        self._file, self._every_s, self._what = file, every_s, what
        self._signals = SignalFd(*ENDING, *OTHERS)
        self._waiter = Waiter()
        self._waiter.add_fd(self._signals.fileno(), "signal")
        self._gpus = GpuMemory(self._waiter, every_s)
        self._reports = PythonReports()
        self._pss, self._machine = PssWatch(), MemoryWatch()
        self._began, self._looked_at = time.monotonic(), -float("inf")
        self._figures: dict[str, int | None] = {}
        self.samples, self.peak_rss_bytes = 0, 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> int:
        """Records until the end; returns the exit code to pass on."""
        due = self._began
        while not self._is_over():
            now = time.monotonic()
            if now >= due:
                self._sample()
                due = max(due + self._every_s, now)
            for event in self._waiter.wait(min(due - time.monotonic(), self._patience_s())):
                self._heard(event.about)
        self._finish()
        self._gpus.close()
        return self._exit_code()

    @abc.abstractmethod
    def _tree(self) -> list[ProcessId]:
        """Returns the processes to measure."""

    @abc.abstractmethod
    def _is_over(self) -> bool:
        """Whether the recording has come to its end."""

    def _patience_s(self) -> float:
        return self._every_s

    @abc.abstractmethod
    def _signalled(self, arrived: Arrived) -> None:
        """Handles a signal that came to the recorder."""

    @abc.abstractmethod
    def _finish(self) -> None:
        """Writes the last row."""

    @abc.abstractmethod
    def _exit_code(self) -> int:
        """Returns the exit code to pass on."""

    def _heard(self, tag: str) -> None:
        if tag == "gpu":
            self._gpus.hear()
        if tag == "signal":
            for arrived in self._signals.read():
                self._look()
                self._write("signal", signal=signal_name(arrived.signum))
                self._signalled(arrived)

    def _sample(self) -> None:
        self._gpus.hear()  # also where it says nothing: its deadline
        self._look(pss=True)
        if self.samples and not self._figures["processes"]:  # it ends just now
            return
        note = self._what if not self.samples else self._reports.new_top()
        self.samples += 1
        self._write("sample", note=note)

    def _look(self, *, pss: bool = False) -> None:
        if not pss and time.monotonic() - self._looked_at < FRESH_S:
            return
        pids = {process.pid for process in self._tree()}
        memory = tree_memory(pids)
        self.peak_rss_bytes = max(self.peak_rss_bytes, memory.rss_bytes, memory.largest_bytes)
        self._looked_at = time.monotonic()
        self._figures = {
            "processes": memory.processes,
            "rss_bytes": memory.rss_bytes,
            "pss_bytes": self._pss.look(pids) if pss else None,
            "swap_bytes": memory.swap_bytes,
            "available_bytes": self._machine.look().headroom_bytes,
            "gpu_bytes": self._gpus.of(pids),
            **self._reports.of(pids),
        }

    def _write(self, kind: Kind, *, note: str = "", signal: str = "", exit_code: int | None = None) -> None:
        figures = {} if kind == "exit" else self._figures
        row = Row(
            utc_now(), self.elapsed_s, kind, **figures,
            peak_rss_bytes=self.peak_rss_bytes or None, exit_code=exit_code, signal=signal, note=note,
        )  # fmt: skip
        self._file.write(row)


class CommandRecorder(Recorder):
    """Starts a command, passes signals on to its whole tree, and ends with it.

    When this process dies, the kernel asks the command to end (TERM), as nobody watches it then.
    """

    def __init__(
        self, file: RecordingFile, every_s: float, command: Sequence[str], *, python: bool = False
    ) -> None:
        super().__init__(file, every_s, " ".join(command))
        self._asked = 0  # signals that end, sent by a process
        self._kill_at = float("inf")
        self._status: int | None = None
        self._marks = LinePipe(self._waiter, "mark", NOTE_CHARS)
        self._inside: LinePipe | None = None
        if python:
            self._inside = LinePipe(self._waiter, "inside", NOTE_CHARS, [self._marks.number])
        self._pid = self._start(list(command))
        self._pidfd = os.pidfd_open(self._pid)
        self._waiter.add_fd(self._pidfd, "end")

    def _start(self, command: list[str]) -> int:
        set_child_subreaper()
        if self._inside is not None:
            # Through env(1): the launcher is a Python program, too, and is not meant.
            variables = python_environment(self._inside, self._every_s, os.environ)
            command = ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
        environ = {**os.environ, MARK_VARIABLE: str(self._marks.number)}
        pipes = [pipe for pipe in (self._marks, self._inside) if pipe is not None]
        actions = [pipe.file_action for pipe in pipes]
        mask, launch = self._signals.mask_before, launch_command(command)
        pid = os.posix_spawn(sys.executable, launch, environ, file_actions=actions, setsigmask=mask)
        for pipe in pipes:
            pipe.started()
        self._await_launch(pid)
        return pid

    @staticmethod
    def _await_launch(pid: int) -> None:
        """Waits until the launcher, whose memory is not the command's, has become the command."""
        until = time.monotonic() + LAUNCH_S
        while LAUNCHER in Path(f"/proc/{pid}/cmdline").read_bytes() and time.monotonic() < until:
            time.sleep(LAUNCH_LOOK_S)

    def _tree(self) -> list[ProcessId]:
        own = self._gpus.pids
        return [process for process in children_tree(os.getpid()) if process.pid not in own]

    def _is_over(self) -> bool:
        if self._status is None:
            return False
        return not self._asked or not self._tree()

    def _patience_s(self) -> float:
        now = time.monotonic()
        if now >= self._kill_at:
            for process in self._tree():
                self._signal(process, signal.SIGKILL)
        return (
            ENDING_LOOK_S if self._status is not None else max(0.0, min(self._every_s, self._kill_at - now))
        )

    def _heard(self, tag: str) -> None:
        super()._heard(tag)
        if tag == "mark":
            self._take_marks()
        if tag == "inside" and self._inside is not None:
            self._reports.take(self._inside.read())
        if tag == "end":
            self._ended()

    def _sample(self) -> None:
        reap_strays({self._pid, *self._gpus.pids})
        super()._sample()

    def _take_marks(self) -> None:
        for mark in self._marks.read():
            self._look()
            self._write("mark", note=mark.decode("utf-8", "replace"))

    def _signalled(self, arrived: Arrived) -> None:
        if arrived.is_terminal:  # the whole foreground has it already, and may take it in its stride
            return
        if arrived.signum in OTHERS:
            if self._status is None:
                os.kill(self._pid, arrived.signum)  # not reaped yet, so the pid is its own
            return
        for process in self._tree():
            self._signal(process, arrived.signum)
            self._signal(process, signal.SIGCONT)  # a stopped process gets it when it runs
        self._asked += 1
        if self._asked == 2 and self._status is None:
            say(f"asked to end twice: what still runs in {KILL_S:.0f} s is killed")
        if self._asked == 2:
            self._kill_at = min(self._kill_at, time.monotonic() + KILL_S)

    def _signal(self, process: ProcessId, signum: int) -> None:
        try:
            signal_process(process, signum)
        except PermissionError:
            say(f"process {process.pid} belongs to another user and is not sent {signal_name(signum)}")

    def _ended(self) -> None:
        _, status, usage = os.wait4(self._pid, 0)
        self._status = os.waitstatus_to_exitcode(status)
        self._waiter.remove_fd(self._pidfd)
        os.close(self._pidfd)
        if self._asked:
            self._kill_at = min(self._kill_at, time.monotonic() + KILL_S)
        # The kernel counts what this process held when it started the command: below that it says nothing.
        if (largest := usage.ru_maxrss * 1024) > own_peak_rss():
            self.peak_rss_bytes = max(self.peak_rss_bytes, largest)

    def _finish(self) -> None:
        self._take_marks()
        if self._inside is not None:
            self._reports.take(self._inside.read())
            if self._reports.is_empty:
                say("no Python program of the command reported; was it started with -I, -S or -E?")
        killed_by = signal_name(-self._status) if self._status is not None and self._status < 0 else ""
        self._write("exit", exit_code=self._exit_code(), signal=killed_by, note=self._reports.top)
        if left := len(self._tree()):
            say(f"the command has ended; {left} of its processes run on and are recorded no more")

    def _exit_code(self) -> int:
        assert self._status is not None
        return self._status if self._status >= 0 else 128 - self._status


class ProcessRecorder(Recorder):
    """Watches a process that runs already, and its children; a signal ends the recording alone."""

    def __init__(self, file: RecordingFile, every_s: float, process: ProcessId, pidfd: int) -> None:
        super().__init__(file, every_s, f"pid {process.pid}")
        self._process, self._pidfd = process, pidfd
        self._ended_by = 0  # the signal that ended the recording
        self._waiter.add_fd(pidfd, "end")
        self._is_gone = False

    def _tree(self) -> list[ProcessId]:
        if not self._process.alive():  # its pid may be another's by now
            return []
        return [self._process, *children_tree(self._process.pid)]

    def _is_over(self) -> bool:
        return self._is_gone or bool(self._ended_by)

    def _heard(self, tag: str) -> None:
        super()._heard(tag)
        self._is_gone |= tag == "end"

    def _signalled(self, arrived: Arrived) -> None:
        if arrived.signum in ENDING:
            self._ended_by = arrived.signum

    def _finish(self) -> None:
        name = signal_name(self._ended_by) if self._ended_by else ""
        note = "the recording was stopped" if self._ended_by else "the process has ended"
        self._write("exit", signal=name, note=note)

    def _exit_code(self) -> int:
        return 128 + self._ended_by if self._ended_by else 0


def find_process(pid: int) -> tuple[ProcessId, int]:
    """Returns a running process and a descriptor of it; raises UnavailableError."""
    try:
        process = ProcessId.of(pid)
        descriptor = os.pidfd_open(pid)
    except OSError as error:  # also a thread's id, which pidfd_open(2) refuses
        raise UnavailableError(f"no process {pid}; `ps` lists those that run") from error
    if not process.alive():
        os.close(descriptor)
        raise UnavailableError(f"process {pid} has ended; `ps` lists those that run")
    return process, descriptor
