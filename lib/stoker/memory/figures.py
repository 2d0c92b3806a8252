"""Measures the memory of a set of processes: by psutil, what is shared in a thread, GPUs in a worker."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection

import psutil

from stoker.kit.workers.parent import Bounds, Worker, WorkerNotStarted

SHARED_SHARE, SHARED_LEAST_S = 0.01, 0.05  # of the time: the kernel walks every page
SHARED = ("pss", "uss", "swap")
GPU_SILENT_S = 60.0  # a driver that no program used before takes long to begin


def rss_by_name(pids: Collection[int]) -> tuple[int, dict[str, int]]:
    """Returns how many of the processes still exist, and their RSS by program name, the largest first."""
    count, by_name = 0, Counter[str]()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if rss := process.memory_info().rss:  # 0: it ends just now
                by_name[process.name()] += rss
                count += 1
    return count, dict(by_name.most_common())


def shared_memory(pids: Collection[int]) -> dict[str, int]:
    """Returns the PSS, USS and swap of the processes; none where one is another user's."""
    sums = Counter[str]()
    for pid in pids:
        try:
            full = psutil.Process(pid).memory_full_info()
        except psutil.AccessDenied:
            return {}
        except psutil.NoSuchProcess:
            continue
        sums.update({f"{name}_bytes": getattr(full, name) for name in SHARED})
    return dict(sums)


class SharedWatch:
    """Measures in a thread: a process that hangs with its memory map held hangs whoever reads it."""

    def __init__(self, measure: Callable[[Collection[int]], dict[str, int]] = shared_memory) -> None:
        self._measure, self._pids, self._found = measure, frozenset[int](), dict[str, int]()
        threading.Thread(target=self._serve, daemon=True).start()

    def take(self, pids: Collection[int]) -> dict[str, int]:
        """Returns what was measured since the last call, if anything; the next time it is these processes."""
        self._pids, found, self._found = frozenset(pids), self._found, {}
        return found

    def _serve(self) -> None:
        while True:
            began = time.monotonic()
            self._found = self._measure(self._pids)
            time.sleep(max(SHARED_LEAST_S, (time.monotonic() - began) / SHARED_SHARE))


class GpuMemory:
    """The bytes of each process on all GPUs, from a worker that a hanging driver may hang."""

    def __init__(self, every_s: float) -> None:
        self._every_s = max(every_s, 1.0)
        self._by_pid, self._told_at = Counter[int](), -float("inf")
        self._worker: Worker | None = None
        with contextlib.suppress(WorkerNotStarted):  # the column stays empty
            task, bounds = {"every_s": self._every_s}, Bounds(silent_s=GPU_SILENT_S)
            self._worker = Worker("stoker.observe.gpu_worker", task, name="the GPU sampler", bounds=bounds)

    @property
    def pid(self) -> int:
        return self._worker.pid if self._worker else 0

    def of(self, pids: Collection[int]) -> int | None:
        """Returns the bytes of these processes; None where no sample is fresh."""
        messages, ended = self._worker.hear() if self._worker else ([], None)
        for message in messages:
            found = [card["figures"].get("processes") for card in message.get("cards", ())]
            if known := [processes for processes in found if processes is not None]:
                self._by_pid, self._told_at = Counter(), time.monotonic()
                for processes in known:
                    self._by_pid.update({int(pid): size for pid, size in processes.items()})
        if ended is not None:
            self._worker = None
        is_fresh = time.monotonic() - self._told_at <= 3 * self._every_s
        return sum(self._by_pid[pid] for pid in pids) if is_fresh else None

    def close(self) -> None:
        if self._worker is not None:
            self._worker.ask_to_stop(0.0)
            self._worker.wait(time.monotonic() + 1.0)  # one in the kernel ends when that lets it go
