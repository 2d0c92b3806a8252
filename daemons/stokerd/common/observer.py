"""Looks at a daemon's processes, and at its machine, for its status, its metrics and its samples."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from stoker.kit.daemon import DaemonContext
from stoker.kit.process import ProcessId, family, pss_of
from stoker.observe.machine import MemoryWatch, PressureGauge
from stoker.observe.processes import DAEMON, ROLES, ProcessTotals
from stoker.observe.samples import Samples, sample
from stoker.store.record import utc_now

LOOK_S = 5.0  # between two looks at the processes
SAMPLE_S = 60.0  # between two rows of samples, and two reads of proportional sizes
PATIENCE_S = 0.2  # for these sizes: longer than they take, and nobody misses a daemon for so long


class Observer:
    """Looks at the daemon, everything that it started, and the memory to spare."""

    def __init__(self, context: DaemonContext) -> None:
        self._context = context
        self.totals = ProcessTotals(ROLES[context.name])
        self._me = ProcessId.of(os.getpid())
        self._memory, self._gauge = MemoryWatch(), PressureGauge()
        self._sizes = _Sizes()
        self._samples = Samples(context.layout.samples(context.name))
        self._is_failing = False
        self._began = time.monotonic()
        self._look_due = self._sample_due = 0.0
        self._shown: dict[str, Any] = {}

    def sample(self, roles: Mapping[int, str], *, status: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what belongs in the status, measured every LOOK_S; writes a row of samples each SAMPLE_S.

        `roles` names the processes that are more than workers, by pid. `status` is that of the daemon, whose
        disks and GPUs a row holds too.
        """
        now = time.monotonic()
        if now >= self._look_due:
            self._look_due = now + LOOK_S
            tree = {self._me: os.getppid(), **family(self._me.pid)}
            is_sampled = now >= self._sample_due
            pss = self._sizes.sample(tree, again=is_sampled)
            processes = self.totals.sample(tree, {self._me.pid: DAEMON, **roles}, pss)
            self._shown = {"processes": processes, "headroom_bytes": self._memory.sample().headroom_bytes}
            if is_sampled:
                self._keep(now, status)
        return self._shown

    def _keep(self, now: float, status: Mapping[str, Any]) -> None:
        """Writes a row; a failure is logged once, and the daemon goes on."""
        pressure = self._gauge.sample() if self._sample_due else None  # the first row: over no time
        self._sample_due = now + SAMPLE_S
        try:
            found = os.statvfs(self._context.layout.state)
            state = {"free_bytes": found.f_bavail * found.f_frsize}
            disks = {"state": state, **status.get("disks", {})}
            known = {**self._shown, "disks": disks, "gpus": status.get("gpus", {})}
            known |= {"bytes_done": status["bytes_done"]} if "bytes_done" in status else {}
            self._samples.add(sample(utc_now(), now - self._began, known, pressure))
        except OSError as error:
            if not self._is_failing:
                self._context.log.warning("samples_unwritable", message=f"no samples are kept: {error}")
            self._is_failing = True
        else:
            self._is_failing = False


class _Sizes:
    """The proportional sizes of processes, read by a thread.

    The kernel makes the reader wait while a process changes its memory map, which one that hangs in a page
    fault does for ever: a daemon's loop must not hang with it.
    """

    def __init__(self) -> None:
        self._known: dict[ProcessId, int] = {}
        self._thread: threading.Thread | None = None

    def sample(self, processes: Mapping[ProcessId, int], *, again: bool) -> Mapping[ProcessId, int]:
        """Returns the last known sizes of these processes; reads new ones, and with `again` all.

        None is known any more where the thread still waits when all are due again.
        """
        for ended in self._known.copy().keys() - processes.keys():
            del self._known[ended]
        wanted = [process for process in processes if again or process not in self._known]
        if wanted and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._read, args=(wanted,), daemon=True)
            self._thread.start()
            self._thread.join(PATIENCE_S)
        elif again:
            self._known.clear()
        return self._known.copy()

    def _read(self, wanted: list[ProcessId]) -> None:
        for process in wanted:
            if (size := pss_of(process.pid)) is not None:
                self._known[process] = size
