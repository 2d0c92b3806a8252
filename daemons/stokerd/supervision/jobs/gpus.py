"""The GPUs: their sampler, whose figures are shown, and what is wrong with a card."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.kit.events import Alerts
from stoker.kit.loop import Backoff
from stoker.kit.metrics import Figure
from stoker.kit.process import children_tree
from stoker.kit.workers.parent import WorkerExit
from stoker.observe.gpus import CERTAINTIES, Cards, Certainty, spill
from stoker.supervise.trainer import Trainer
from stokerd.supervision.jobs.base import Message, RunActivity, Slice
from stokerd.supervision.run import Run

EVERY_S = 5.0  # between two samples
SILENT_S = 60.0  # a driver that no program used before takes long to begin, once per card
ABSENT_S = 600.0  # between two looks for a driver where there was none
DRIVERS = (Path("/proc/driver/nvidia"), Path("/dev/dxg"))  # one of them exists where a driver is loaded
NO_DRIVER = "neither /proc/driver/nvidia nor /dev/dxg exists"
RETRY_FIRST_S, RETRY_MOST_S = 5.0, 600.0
MOST_XIDS = 10  # that a launch keeps as evidence


def _figure(name: str, text: str, *labels: str) -> Figure:
    return Figure(
        f"gpu_{name}", text, f"gpus.{name}.*" + ".*" * len(labels), dict.fromkeys(("gpu", *labels), ())
    )


GPU_FIGURES = (
    Figure("gpu_sampler_up", "1 while the GPUs are sampled; NaN without a driver.", "gpus.up"),
    Figure("gpus_expected", "Cards that the driver showed first.", "gpus.expected"),
    _figure("present", "0 for a card that is gone from the bus."),
    _figure("info", "Name and UUID of the GPU; always 1.", "uuid", "name"),
    _figure("memory_used_bytes", "Bytes in use on the GPU."),
    _figure("memory_total_bytes", "Bytes of memory of the GPU."),
    _figure("process_memory_bytes", "Bytes of GPU memory by user.", "process"),
    _figure("utilization_ratio", "Share of time in which the GPU works."),
    _figure("temperature_celsius", "Degrees Celsius of the GPU's chip."),
    _figure("power_watts", "Watts that the GPU draws."),
    _figure("energy_joules_total", "Joules that the GPU has used."),
    _figure("sm_clock_hertz", "Hertz of the GPU's multiprocessors."),
    _figure("clock_event", "1 for what lowers the GPU's clocks.", "reason"),
    _figure("ecc_errors_total", "Memory errors in the GPU's life.", "kind"),
    _figure("remap_pending", "1 where the GPU needs a reset to remap rows."),
    _figure("xid_total", "Xids of the GPU by cause.", "class"),
    Figure("gpu_spill", "1 for a launch in host memory (WSL2).", "gpus.spill.*", {"certainty": ()}),
)


class Gpus:
    """The cards by their samples; `is_wsl2` has each launch judged for spill, too."""

    def __init__(self, run: Run) -> None:
        self._run, self._events, self._alerts = run, run.events, Alerts(run.events)
        self._backoff, self.start_at = Backoff(RETRY_FIRST_S, RETRY_MOST_S), 0.0
        self._up: bool | None = None
        self.is_wsl2 = "microsoft" in os.uname().release.lower()
        self._launch, self._spilled = "", set[Certainty]()
        self.cards = Cards()

    def shown(self) -> dict[str, Any]:
        """Returns what status and metrics show."""
        spilled = {one: one in self._spilled for one in CERTAINTIES} if self.is_wsl2 else {}
        return {"up": self._up, "spill": spilled, **self.cards.shown()}

    def receive(self, message: Message) -> None:
        """Takes in a message of the sampler."""
        if message["kind"] == "xid":
            number = message["number"]
            gpu, kind = self.cards.erred(message, number)
            words = {"gpu": gpu, "xid": number, "class": kind}
            words |= {} if kind == "hardware" else {"level": "warning"}
            self._alerts.raise_("gpu_xid", f"{gpu} {number}", **words)
            if kind == "hardware":  # no program brings it about
                self._note_evidence([number])
            return
        is_first, trainer = self.cards.expected is None, self._run.state.live
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
        if self.is_wsl2 and trainer is not None:
            self._judge_spill(trainer)
        self._note_evidence([])

    def _note_evidence(self, xids: Sequence[int]) -> None:
        """Adds to what is known of the launch: hardware Xids, and what others hold of the cards' memory."""
        trainer, share = self._run.state.live, self.cards.others_share()
        if trainer is not None:
            all_xids = (*trainer.evidence.xids, *xids)[-MOST_XIDS:]
            evidence = replace(trainer.evidence, xids=all_xids, gpu_others_share=share)
            self._run.change(trainer=replace(trainer, evidence=evidence))

    def _tell_lost(self) -> None:
        for gpu, card in self.cards.cards.items():
            if card.is_present:
                self._alerts.clear("gpu_lost", gpu, tell="gpu_back", gpu=gpu)
                continue
            self._alerts.raise_("gpu_lost", gpu, repeat=False, gpu=gpu, uuid=card.uuid)

    def ended(self, end: WorkerExit) -> None:
        """Takes in that no sampler runs, and when the next one is due."""
        now = time.monotonic()
        absent = (end.result or {}).get("absent")
        if absent is None:
            self._failed(end.reason())
        elif self.cards.expected is None:
            self.start_at, self._up = now + ABSENT_S, None
            self._alerts.clear("gpu_sampler_failed")
            self._alerts.raise_("gpu_driver_absent", repeat=False, reason=absent)
            return
        else:
            self._failed(absent)
            self.cards.vanished()
            self._tell_lost()
        self.start_at = now + self._backoff.next()

    def _failed(self, reason: str) -> None:
        self._up = False
        self.cards.silenced()
        self._note_evidence([])
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


STATE = Slice("gpus", Gpus)


def _due(run: Run) -> Iterator[str]:
    gpus = STATE.of(run)
    if time.monotonic() < gpus.start_at:
        return
    if gpus.cards.expected is None and not any(driver.exists() for driver in DRIVERS):
        gpus.ended(WorkerExit("finished", result={"absent": NO_DRIVER}))
    else:
        yield ""


GPUS = RunActivity(
    kind="gpus",
    module="stoker.observe.gpu_worker",
    silent_s=SILENT_S,
    pool="gpus",  # it may hang in the driver
    task=lambda _run, _job: {"every_s": EVERY_S},
    on_message=lambda run, _, message: STATE.of(run).receive(message),
    on_end=lambda run, _, end: STATE.of(run).ended(end),
    due=_due,
    ends_in=(),
    slices=(STATE,),
)
