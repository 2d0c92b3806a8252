"""The supervisor's view of the GPUs: runs their sampler, shows its figures, says what is wrong with a card.

The sampler may hang in the driver. Then it is killed, and another one starts once the kernel has let it go;
nothing here waits for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.kit.context import DaemonContext
from stoker.kit.events import Alerts
from stoker.kit.loop import Backoff
from stoker.kit.metrics import Figure
from stoker.kit.process import children_tree
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Activity, WorkerPool
from stoker.observe.gpus import CERTAINTIES, Cards, Certainty, spill
from stoker.store.errors import Transient
from stoker.supervise.trainer import Trainer

EVERY_S = 5.0  # between two samples
SILENT_S = 60.0  # a driver that no program used before takes long to begin, once per card
ABSENT_S = 600.0  # between two looks for a driver where there was none
RETRY_FIRST_S, RETRY_MOST_S = 5.0, 600.0
SAMPLER = "gpus"


def _by(*labels: str) -> dict[str, Sequence[str]]:
    return dict.fromkeys(("gpu", *labels), ())


GPU_FIGURES = (
    Figure("gpu_sampler_up", "1 while the GPUs are sampled; NaN without a driver.", "gpus.up"),
    Figure("gpus_expected", "Cards that the driver showed first.", "gpus.expected"),
    Figure("gpu_present", "0 for a card that is gone from the bus.", "gpus.present.*", _by()),
    Figure("gpu_info", "Name and UUID of the GPU; always 1.", "gpus.info.*.*.*", _by("uuid", "name")),
    Figure("gpu_memory_used_bytes", "Bytes in use on the GPU.", "gpus.memory_used_bytes.*", _by()),
    Figure("gpu_memory_total_bytes", "Bytes of memory of the GPU.", "gpus.memory_total_bytes.*", _by()),
    Figure(
        "gpu_process_memory_bytes",
        "Bytes of GPU memory by user.",
        "gpus.process_memory_bytes.*.*",
        _by("process"),
    ),
    Figure(
        "gpu_utilization_ratio", "Share of time in which the GPU works.", "gpus.utilization_ratio.*", _by()
    ),
    Figure(
        "gpu_temperature_celsius", "Degrees Celsius of the GPU's chip.", "gpus.temperature_celsius.*", _by()
    ),
    Figure("gpu_power_watts", "Watts that the GPU draws.", "gpus.power_watts.*", _by()),
    Figure("gpu_energy_joules_total", "Joules that the GPU has used.", "gpus.energy_joules_total.*", _by()),
    Figure("gpu_sm_clock_hertz", "Hertz of the GPU's multiprocessors.", "gpus.sm_clock_hertz.*", _by()),
    Figure("gpu_clock_event", "1 for what lowers the GPU's clocks.", "gpus.clock_event.*.*", _by("reason")),
    Figure(
        "gpu_ecc_errors_total", "Memory errors in the GPU's life.", "gpus.ecc_errors_total.*.*", _by("kind")
    ),
    Figure(
        "gpu_remap_pending", "1 where the GPU needs a reset to remap rows.", "gpus.remap_pending.*", _by()
    ),
    Figure("gpu_xid_total", "Xids of the GPU by what brings them about.", "gpus.xid_total.*.*", _by("class")),
    Figure("gpu_spill", "1 for a launch in host memory (WSL2).", "gpus.spill.*", {"certainty": ()}),
)


class Gpus:
    """Samples the GPUs and tells of their troubles; `is_wsl2` has each launch judged for spill, too."""

    def __init__(self, context: DaemonContext, *, is_wsl2: bool | None = None) -> None:
        name = f"{context.layout.state}:{SAMPLER}"
        self._pool = WorkerPool[None](name, context.waiter)
        self._activity = Activity("sample", "stoker.observe.gpu_worker", SILENT_S)
        self._events, self._alerts = context.events, Alerts(context.events)
        self._backoff, self._start_at = Backoff(RETRY_FIRST_S, RETRY_MOST_S), 0.0
        self._up: bool | None = None
        self._is_wsl2 = "microsoft" in os.uname().release.lower() if is_wsl2 is None else is_wsl2
        self._launch, self._spilled = "", set[Certainty]()
        self.cards = Cards()

    @property
    def pids(self) -> set[int]:
        return self._pool.pids

    def look(self, trainer: Trainer | None) -> list[int]:
        """Takes in what the sampler sent, and starts one where it is due; never waits.

        Returns the new Xids that no program brings about.
        """
        xids = list[int]()
        for job, messages, end in self._pool.hear():
            for message in messages:
                xids += self._take(message, trainer)
            if end is not None:
                self._ended(end)
            elif job.worker.ending:
                self._failed("the driver does not answer")
        now = time.monotonic()
        if SAMPLER not in self._pool and now >= self._start_at:
            try:
                self._pool.start(self._activity, SAMPLER, {"every_s": EVERY_S}, None)
            except Transient as problem:
                self._start_at = now + self._backoff.next()
                self._failed(str(problem))
        return xids

    def shown(self) -> dict[str, Any]:
        """Returns what status and metrics show."""
        spilled = {one: one in self._spilled for one in CERTAINTIES} if self._is_wsl2 else {}
        return {"up": self._up, "spill": spilled, **self.cards.shown()}

    def close(self) -> None:
        """Ends the sampler; gives up on one that the kernel does not let go."""
        self._pool.stop()

    def _take(self, message: Mapping[str, Any], trainer: Trainer | None) -> Sequence[int]:
        """Takes in a message of the sampler; returns its Xid where no program brought it about."""
        if message["kind"] == "xid":
            number = message["number"]
            gpu, kind = self.cards.erred(message, number)
            words = {"gpu": gpu, "xid": number, "class": kind}
            words |= {} if kind == "hardware" else {"level": "warning"}
            self._alerts.raise_("gpu_xid", f"{gpu} {number}", **words)
            return (number,) if kind == "hardware" else ()
        is_first = self.cards.expected is None
        tree = children_tree(trainer.guard.pid) if trainer is not None else ()
        self.cards.sampled(message["cards"], {process.pid for process in tree})
        self._up = True
        self._backoff.reset()
        self._alerts.clear("gpu_sampler_failed", tell="gpu_sampler_recovered")
        if is_first:
            found = [
                {"gpu": gpu, "name": card.name, "uuid": card.uuid, "lacks": list(card.lacks)}
                for gpu, card in self.cards.cards.items()
            ]
            self._events.record("gpus_found", cards=found)
        self._tell_lost()
        if self._is_wsl2 and trainer is not None:
            self._judge_spill(trainer)
        return ()

    def _tell_lost(self) -> None:
        for gpu, card in self.cards.cards.items():
            if card.is_present:
                self._alerts.clear("gpu_lost", gpu, tell="gpu_back", gpu=gpu)
                continue
            self._alerts.raise_("gpu_lost", gpu, repeat=False, gpu=gpu, uuid=card.uuid)

    def _ended(self, end: WorkerExit) -> None:
        now = time.monotonic()
        absent = (end.result or {}).get("absent")
        if absent is None:
            self._failed(end.reason())
        elif self.cards.expected is None:
            self._start_at, self._up = now + ABSENT_S, None
            self._alerts.clear("gpu_sampler_failed")
            self._alerts.raise_("gpu_driver_absent", repeat=False, reason=absent)
            return
        else:
            self._failed(absent)
            self.cards.vanished()
            self._tell_lost()
        self._start_at = now + self._backoff.next()

    def _failed(self, reason: str) -> None:
        self._up = False
        self.cards.silenced()
        self._alerts.raise_("gpu_sampler_failed", repeat=False, reason=reason)

    def _judge_spill(self, trainer: Trainer) -> None:
        if trainer.launch.launch != self._launch:
            self._launch, self._spilled = trainer.launch.launch, set()
        sizes = ("memory_used_bytes", "memory_total_bytes")
        found = [[card.figures.get(size) for size in sizes] for card in self.cards.cards.values()]
        known = [(used, total) for used, total in found if used is not None and total is not None]
        reserved_bytes = trainer.view.gpu_reserved_bytes
        certainty = spill(reserved_bytes, known, trainer.step_times.times)
        if certainty is None or certainty in self._spilled:
            return
        self._spilled.add(certainty)
        words = {"launch": self._launch, "step": trainer.step, "reserved_bytes": reserved_bytes}
        self._events.record("gpu_spill", certainty=certainty, **words, cards=known)
