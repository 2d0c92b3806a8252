"""What others ask of the train supervisor: looked for every second, answered in requests/done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.kit.context import DaemonContext
from stoker.store.errors import StorageError
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.requests import Request
from stokerd.common.request_box import RequestBox
from stokerd.supervision.cycle import Turns

LOOK_S = 1.0
COMPLAINT_S = 60.0

Consider = Callable[[Request], Mapping[str, Any] | None]


class RequestDesk:
    """The requests directory. Who is in charge of a verb answers at once, or None: it is acted on later."""

    def __init__(self, context: DaemonContext, turns: Turns, verbs: Mapping[str, Consider]) -> None:
        self.events, self.turns = context.events, turns
        self.box = RequestBox(context.layout, TRAIN_SUPERVISOR, context.events)
        self.verbs = verbs

    def look(self) -> None:
        """Answer what is new, or leave it for later while nothing can be written."""
        if not self.turns.due("requests", LOOK_S):
            return
        try:
            for request in self.box.read():
                outcome = self.consider(request)
                if outcome is not None:
                    self.box.finish(request, outcome)
        except StorageError as problem:
            if self.turns.due("request trouble", COMPLAINT_S):
                self.events.record("storage_trouble", "warning", message=str(problem))

    def consider(self, request: Request) -> Mapping[str, Any] | None:
        """The answer to a request; None for one that waits for its time."""
        if request.verb not in self.verbs:
            known = ", ".join(sorted(self.verbs))
            return {"refused": f"unknown verb {request.verb}; this daemon knows {known}"}
        return self.verbs[request.verb](request)
