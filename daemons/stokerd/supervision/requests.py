"""Answers the operators' requests to the train supervisor: at once, except rollbacks.

A rollback is only accepted here: `rollbacks` makes and answers it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stoker.corpus.quarantine.directory import DROP, read_quarantine
from stoker.kit.events import Alerts
from stoker.store.errors import StorageError
from stoker.store.files import remove_tree
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.requests import Request
from stoker.supervise.run.record import BY_TRAINER
from stokerd.common.loop import RequestBox
from stokerd.supervision.rollbacks import VERBS, Rollbacks
from stokerd.supervision.run import Run

LOOK_S = 1.0
COMPLAINT_S = 60.0


class Requests:
    """Reads and answers requests."""

    def __init__(self, run: Run) -> None:
        self.run, self.events = run, run.events
        self.box = RequestBox(run.pipeline.layout, TRAIN_SUPERVISOR, run.events)
        self.rollbacks = Rollbacks(run, self.box)
        self.handlers = {
            **dict.fromkeys(VERBS, self.rollbacks.consider),
            **{"pause": self._pause, "resume": self._resume, DROP: self._drop},
        }
        self.alerts = Alerts(run.events, COMPLAINT_S)
        self._look_at = 0.0

    def refresh(self) -> None:
        """Answers new requests; while the disk cannot be written, they stay for a later call.

        A pipeline file that has changed speaks for a halted run, as a request does.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        try:
            if self.run.store.is_file_changed:
                self._go_on("the pipeline file has changed", paused=self.run.store.begun.paused)
            self.box.answer(self.handlers)
        except StorageError as problem:
            self.alerts.raise_("storage_trouble", message=str(problem))

    def _pause(self, request: Request) -> Mapping[str, Any]:
        """Has the trainer seal a checkpoint and end, and none launched until the run is resumed."""
        run, record = self.run, self.run.store.record
        if record is None or record.is_over:
            return {"refused": f"the run {'is ' + record.state if record else 'has not begun'}"}
        if record.paused is None:
            run.store.pause(request.by)
            self.events.record("run_paused", by=request.by, step=run.at.step)
        return {"paused": True, "trains": run.state.live is not None}

    def _resume(self, request: Request) -> Mapping[str, Any]:
        record = self.run.store.record
        is_over = record is not None and record.finished != BY_TRAINER
        if record is None or (is_over and not record.held):
            return {"resumed": False}
        self._go_on(f"asked for by {request.by}")
        return {"resumed": True}

    def _go_on(self, why: str, paused: Mapping[str, Any] | None = None) -> None:
        """Allows launches again."""
        run = self.run
        was = run.store.begun.held or run.store.begun.state
        run.store.resume(paused=paused)
        run.change(failures=0, retry_at=0.0)
        self.events.record("run_resumed", message=why, was=was)

    def _drop(self, request: Request) -> Mapping[str, Any]:
        """Removes a quarantined checkpoint with its reason; a missing one counts as removed."""
        name, quarantine = str(request.args.get("name")), self.run.pipeline.layout.quarantine
        kept = next((one for one in read_quarantine(quarantine) if one.name == name), None)
        if kept is None:
            return {"dropped": name, "bytes": 0}
        if kept.kind != "checkpoint":
            return {"refused": f"{name} is no checkpoint; the stage-shard loop keeps what else there is"}
        remove_tree(quarantine / name)
        why = f"asked for by {request.by}"
        self.events.record(
            "quarantine_dropped", kind=kept.kind, path=kept.path, folder=name, bytes=kept.bytes, why=why
        )
        return {"dropped": name, "bytes": kept.bytes}
