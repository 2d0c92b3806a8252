"""Records the memory of a command's processes, or of a process and its children, from start to end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

import psutil

from stoker.kit.exec import launch_command, set_child_subreaper
from stoker.kit.process import (
    ProcessId,
    children_tree,
    own_peak_rss,
    reap_strays,
    signal_name,
    signal_process,
)
from stoker.kit.workers.child import LineBuffer
from stoker.memory.figures import GpuMemory, SharedWatch, rss_by_name
from stoker.memory.recording import NOTE_CHARS, RecordingFile
from stoker.observe.machine import MemoryWatch
from stoker.store.errors import UnavailableError
from stoker.store.record import utc_now

MARK_VARIABLE = "STOKER_MARK_FD"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
OTHERS = (signal.SIGUSR1, signal.SIGUSR2)  # for the command alone: whoever does not expect them dies of them
WAKING = (signal.SIGCHLD, signal.SIGIO)  # a child has ended, a mark has come
KILL_S = 10.0  # from a second signal that ends, or from the command's own end after the first, to KILL
FRESH_S = 0.1  # figures so old serve for a mark, however many come
TICK_S = 0.1  # between two checks of what no signal tells: the end of a tree, the time to kill
LAUNCHER, LAUNCH_S, LAUNCH_TICK_S = b"\0stoker.kit.exec\0", 5.0, 0.002


def say(text: str) -> None:
    """Writes a line to standard error; a terminal that is gone is no reason to end."""
    with contextlib.suppress(OSError):
        os.write(2, f"stoker: {text}\n".encode("utf-8", "replace"))


class Recorder:
    """Watches the process and its children until it ends, or a signal ends the recording alone."""

    def __init__(self, file: RecordingFile, every_s: float, process: ProcessId, what: str = "") -> None:
        self._file, self._every_s, self._process = file, every_s, process
        self._what = what or f"pid {process.pid}"
        self._gpus = GpuMemory(every_s)  # before the signals are blocked, which a child inherits
        # A signal that this process ignores stays ignored.
        heard = [one for one in (*ENDING, *OTHERS) if signal.getsignal(one) is not signal.SIG_IGN]
        self._signals = [*heard, *WAKING]
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        self._shared, self._machine = SharedWatch(), MemoryWatch()
        self._began, self._measured_at = time.monotonic(), -float("inf")
        self._figures: dict[str, object] = {}
        self._asked: list[int] = []  # the signals that end, but for those of the terminal
        self.samples, self.peak_rss_bytes = 0, 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> int:
        """Records until the end; returns the exit code to pass on."""
        self._sample()  # before the first mark
        due = self._began + self._every_s
        while not self._is_over():
            if (now := time.monotonic()) >= due:
                self._sample()
                due = max(due + self._every_s, now)
            # sigtimedwait(2), not a handler: it tells whether the terminal sent the signal.
            arrived = signal.sigtimedwait(self._signals, max(0.0, min(due - time.monotonic(), TICK_S)))
            if arrived is not None and arrived.si_signo not in WAKING:
                self._measure()
                self._write("signal", signal=signal_name(arrived.si_signo))
                self._signalled(arrived.si_signo, is_terminal=arrived.si_code > 0)
        code, how, note = self._end()
        self._figures = {}
        self._write("exit", exit_code=code, signal=signal_name(how) if how else "", note=note)
        self._gpus.close()
        return 128 + how if how else code or 0

    def _tree(self) -> list[ProcessId]:
        """Returns the processes to measure."""
        # Once it has ended its pid may be another's.
        return [self._process, *children_tree(self._process.pid)] if self._process.alive() else []

    def _is_over(self) -> bool:
        return bool(self._asked) or not self._process.alive()

    def _signalled(self, signum: int, *, is_terminal: bool) -> None:
        if signum in ENDING:
            self._asked.append(signum)

    def _end(self) -> tuple[int | None, int, str]:
        """Returns what the last row tells: exit code, the signal that ended it or 0, a note."""
        if self._asked:
            return None, self._asked[0], "the recording was stopped"
        return None, 0, "the process has ended"

    def _sample(self) -> None:
        self._measure(is_sample=True)
        if self._figures["processes"] or not self.samples:  # else it ends just now
            self._write("sample", note="" if self.samples else self._what)
            self.samples += 1

    def _measure(self, *, is_sample: bool = False) -> None:
        if not is_sample and time.monotonic() - self._measured_at < FRESH_S:
            return
        pids = {process.pid for process in self._tree()}
        count, by_name = rss_by_name(pids)
        rss = sum(by_name.values())
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss)
        self._measured_at = time.monotonic()
        self._figures = {
            "processes": count,
            "rss_bytes": rss,
            "available_bytes": self._machine.sample().headroom_bytes,
            "gpu_bytes": self._gpus.of(pids),
            "by_name": "; ".join(f"{name} {size}" for name, size in by_name.items()),
            **self._shared.take(pids),
        }

    def _write(self, kind: str, **cells: object) -> None:
        row = {"time": utc_now(), "elapsed_s": f"{self.elapsed_s:.3f}", "kind": kind, **self._figures}
        self._file.write({**row, "peak_rss_bytes": self.peak_rss_bytes or None, **cells})


class CommandRecorder(Recorder):
    """Starts a command, passes signals on to its whole tree, and ends with it.

    When this process dies, the kernel asks the command to end (TERM), as nobody watches it then.
    """

    def __init__(self, file: RecordingFile, every_s: float, command: list[str]) -> None:
        self._marks, marking = os.pipe()  # first: shells can redirect to single digits only
        super().__init__(file, every_s, ProcessId.of(os.getpid()), " ".join(command))
        self._kill_at = float("inf")
        self._status: int | None = None
        self._lines = LineBuffer(NOTE_CHARS)
        fcntl.fcntl(self._marks, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._marks, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)  # a SIGIO a mark
        set_child_subreaper()
        os.set_inheritable(marking, True)
        environ = {**os.environ, MARK_VARIABLE: str(marking)}
        self._pid = os.posix_spawn(sys.executable, launch_command(command), environ, setsigmask=self._mask)
        os.close(marking)
        # Until the launcher, whose memory is not the command's, has become the command.
        until = time.monotonic() + LAUNCH_S
        while LAUNCHER in Path(f"/proc/{self._pid}/cmdline").read_bytes() and time.monotonic() < until:
            time.sleep(LAUNCH_TICK_S)

    def _tree(self) -> list[ProcessId]:
        return [process for process in children_tree(os.getpid()) if process.pid != self._gpus.pid]

    def _is_over(self) -> bool:
        self._take_marks()
        if self._status is None:
            self._reap()
        if time.monotonic() >= self._kill_at:
            self._signal_all(signal.SIGKILL)
        return self._status is not None and (not self._asked or not self._tree())

    def _sample(self) -> None:
        reap_strays({self._pid, self._gpus.pid})
        super()._sample()

    def _take_marks(self) -> None:
        lines: list[bytes] = []
        with contextlib.suppress(BlockingIOError):  # while a process is left that can write one
            while data := os.read(self._marks, 1 << 16):
                lines += self._lines.feed(data)
            lines += self._lines.finish()
        for mark in filter(bytes.strip, lines):
            self._measure()
            self._write("mark", note=mark.decode("utf-8", "replace"))

    def _reap(self) -> None:
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if not pid:
            return
        self._status = os.waitstatus_to_exitcode(status)
        if self._asked:
            self._kill_at = min(self._kill_at, time.monotonic() + KILL_S)
        # The kernel counts what this process held when it started the command: below that it says nothing.
        if (largest := usage.ru_maxrss * 1024) > own_peak_rss():
            self.peak_rss_bytes = max(self.peak_rss_bytes, largest)

    def _signalled(self, signum: int, *, is_terminal: bool) -> None:
        if is_terminal:  # the whole foreground has it already, and may take it in its stride
            return
        if signum in OTHERS:
            if self._status is None:
                os.kill(self._pid, signum)  # not reaped yet, so the pid is its own
            return
        self._signal_all(signum)
        self._asked.append(signum)
        if len(self._asked) == 2:
            say(f"asked to end twice: what still runs in {KILL_S:.0f} s is killed")
            self._kill_at = min(self._kill_at, time.monotonic() + KILL_S)

    def _signal_all(self, signum: int) -> None:
        for process in self._tree():
            try:
                signal_process(process, signum)
                signal_process(process, signal.SIGCONT)  # a stopped process gets it when it runs
            except PermissionError:
                name = signal_name(signum)
                say(f"process {process.pid} belongs to another user and is not sent {name}")

    def _end(self) -> tuple[int | None, int, str]:
        assert self._status is not None
        self._take_marks()
        if left := len(self._tree()):
            say(f"the command has ended; {left} of its processes run on and are recorded no more")
        killed_by = max(0, -self._status)
        return (128 + killed_by if killed_by else self._status), killed_by, ""


def find_process(pid: int) -> ProcessId:
    """Returns a running process; raises UnavailableError."""
    # psutil: /proc has an entry for a thread's id, too.
    process = ProcessId.of(pid) if psutil.pid_exists(pid) else None
    if process is None or not process.alive():
        raise UnavailableError(f"no process {pid} runs; `ps` lists those that do")
    return process
