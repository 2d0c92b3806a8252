"""What operators ask of the train supervisor: looked for every second, answered in requests/done."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stoker.corpus.quarantine.directory import read_quarantine
from stoker.kit.context import DaemonContext
from stoker.shards.audit.recheck import DROP
from stoker.store.errors import StorageError
from stoker.store.files import remove_tree
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.requests import Request
from stokerd.common.alerts import Alerts
from stokerd.common.request_box import RequestBox
from stokerd.supervision.rollback import VERBS, Rollbacks

LOOK_S = 1.0
COMPLAINT_S = 60.0


class Requests:
    """The requests directory. A request that is accepted is answered when it was acted on."""

    def __init__(self, context: DaemonContext, rollbacks: Rollbacks) -> None:
        self.events, self.quarantine = context.events, context.layout.quarantine
        self.box = RequestBox(context.layout, TRAIN_SUPERVISOR, context.events)
        self.rollbacks = rollbacks
        self.alerts = Alerts(context.events, COMPLAINT_S)
        self._look_at = 0.0

    def look(self) -> None:
        """Answer what is new, or leave it for later while nothing can be written."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        try:
            for request in self.box.read():
                outcome = self.consider(request)
                if outcome is not None:
                    self.box.finish(request, outcome)
        except StorageError as problem:
            self.alerts.raise_("storage_trouble", message=str(problem))

    def consider(self, request: Request) -> Mapping[str, Any] | None:
        """The answer to a request; None for one that is acted on later."""
        if request.verb in VERBS:
            return self.rollbacks.consider(request)
        if request.verb == DROP:
            return self._drop(request)
        known = ", ".join(sorted((*VERBS, DROP)))
        return {"refused": f"unknown verb {request.verb}; this daemon knows {known}"}

    def _drop(self, request: Request) -> Mapping[str, Any]:
        """Remove a quarantined checkpoint with its reason; one that is gone already is gone."""
        name = str(request.args.get("name"))
        kept = next((one for one in read_quarantine(self.quarantine) if one.name == name), None)
        if kept is None:
            return {"dropped": name, "bytes": 0}
        if kept.kind != "checkpoint":
            return {"refused": f"{name} is no checkpoint; the stage-shard loop keeps what else there is"}
        remove_tree(self.quarantine / name)
        why = f"asked for by {request.by}"
        self.events.record(
            "quarantine_dropped", kind=kept.kind, path=kept.path, folder=name, bytes=kept.bytes, why=why
        )
        return {"dropped": name, "bytes": kept.bytes}
