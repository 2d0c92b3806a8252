"""What a recorder hears of the memory that /proc does not show: by GPU, and from inside Python programs."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import stoker.memory
from stoker.config.units import format_bytes
from stoker.kit.loop import Waiter
from stoker.kit.workers.child import LineBuffer
from stoker.kit.workers.parent import Bounds, Worker, WorkerNotStarted
from stoker.store.record import parse_json

HOOK = Path(stoker.memory.__path__[0]) / "python_hook"
READ_BYTES, READS_AT_ONCE = 1 << 16, 64
NUMBERS = range(9, 2, -1)  # of descriptors that every shell can redirect to
GPU_SILENT_S = 60.0  # a driver that no program used before takes long to begin


class LinePipe:
    """A pipe that a child writes lines to, at the descriptor `number`; only so much of a line is kept."""

    def __init__(self, waiter: Waiter, tag: str, limit: int, taken: Collection[int] = ()) -> None:
        self.number = next(number for number in NUMBERS if number not in taken and not _inherited(number))
        self._reading, writing = os.pipe2(os.O_CLOEXEC)
        self._writing = fcntl.fcntl(writing, fcntl.F_DUPFD_CLOEXEC, NUMBERS[0] + 1)
        os.close(writing)
        os.set_blocking(self._reading, False)
        self._waiter, self._lines, self._is_open = waiter, LineBuffer(limit), True
        waiter.add_fd(self._reading, tag)

    @property
    def inode(self) -> int:
        return os.fstat(self._reading).st_ino

    @property
    def file_action(self) -> tuple[int, int, int]:
        """What posix_spawn has to do to give the writing end to a child."""
        return os.POSIX_SPAWN_DUP2, self._writing, self.number

    def started(self) -> None:
        """Leaves the writing end to the child."""
        os.close(self._writing)

    def read(self) -> list[bytes]:
        """Returns the lines that have come, without empty ones."""
        found: list[bytes] = []
        for _ in range(READS_AT_ONCE if self._is_open else 0):
            try:
                data = os.read(self._reading, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                self._waiter.remove_fd(self._reading)
                self._is_open = False
                found += self._lines.finish()
                break
            found += self._lines.feed(data)
        return [line for line in found if line.strip()]


def _inherited(number: int) -> bool:
    """Returns whether a child gets a descriptor of whoever started this process."""
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


class PythonReports:
    """The last report of each Python process of a tree (see stoker.memory.python_hook)."""

    def __init__(self) -> None:
        self._by_pid: dict[int, dict[str, Any]] = {}
        self.top, self._is_new = "", False  # the lines of code that hold most

    def take(self, lines: Collection[bytes]) -> None:
        """Takes in reports; a line that is none is left out."""
        for line in lines:
            try:
                body = parse_json(line)
                self._by_pid[int(body["pid"])] = body
                top = [f"{place} {format_bytes(size)}" for place, size in body.get("top", ())]
            except (ValueError, TypeError, KeyError):
                continue
            if top:
                self.top, self._is_new = "; ".join(top), True

    def new_top(self) -> str:
        """Returns the lines of code that hold most, once."""
        is_new, self._is_new = self._is_new, False
        return self.top if is_new else ""

    def of(self, pids: Collection[int]) -> dict[str, int | None]:
        """Returns the bytes of Arrow's pools and of traced Python objects; None where nobody reports."""

        def total(name: str) -> int | None:
            sizes = [body[name] for pid, body in self._by_pid.items() if pid in pids and name in body]
            return sum(sizes) if sizes else None

        return {"arrow_bytes": total("arrow"), "traced_bytes": total("traced")}

    @property
    def is_empty(self) -> bool:
        return not self._by_pid


def python_environment(pipe: LinePipe, every_s: float, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that make a Python program report to the pipe."""
    path = os.pathsep.join(filter(None, [str(HOOK), environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "STOKER_MEMORY_REPORT": f"{pipe.number}:{pipe.inode}:{every_s}"}


class GpuMemory:
    """The bytes of each process on all GPUs, from a worker that a hanging driver may hang."""

    def __init__(self, waiter: Waiter, every_s: float) -> None:
        self._waiter, self._every_s = waiter, max(every_s, 1.0)
        self._by_pid = Counter[int]()
        self._heard_at = -float("inf")
        self._worker: Worker | None = None
        try:
            task, bounds = {"every_s": self._every_s}, Bounds(silent_s=GPU_SILENT_S)
            self._worker = Worker("stoker.observe.gpu_worker", task, name="the GPU sampler", bounds=bounds)
            waiter.add_fd(self._worker.fileno(), "gpu")
        except WorkerNotStarted:  # the column stays empty
            return

    @property
    def pids(self) -> set[int]:
        return {self._worker.pid} if self._worker else set()

    def hear(self) -> None:
        """Takes in what the worker sent; after its end there are no figures."""
        if self._worker is None:
            return
        messages, ended = self._worker.hear()
        for message in messages:
            found = [card["figures"].get("processes") for card in message.get("cards", ())]
            if known := [processes for processes in found if processes is not None]:
                total = Counter[int]()
                for processes in known:
                    total.update({int(pid): size for pid, size in processes.items()})
                self._by_pid, self._heard_at = total, time.monotonic()
        if ended is not None:
            self._waiter.remove_fd(self._worker.fileno())
            self._worker = None

    def of(self, pids: Collection[int]) -> int | None:
        """Returns the bytes of these processes; None where no sample is fresh."""
        if time.monotonic() - self._heard_at > 3 * self._every_s:
            return None
        return sum(self._by_pid[pid] for pid in pids)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.ask_to_stop(0.0)
            self._worker.wait(time.monotonic() + 1.0)  # one in the kernel ends when that lets it go
