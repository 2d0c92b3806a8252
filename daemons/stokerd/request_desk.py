"""What others ask of the train supervisor: looked for every few seconds, answered in requests/done."""

from __future__ import annotations

from stoker.kit.context import DaemonContext
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.requests import finish_request, pending_requests
from stokerd.turns import Turns

LOOK_S = 10.0


class RequestDesk:
    """The requests directory; nothing can be asked of this daemon yet, and who asks is told so."""

    def __init__(self, context: DaemonContext, turns: Turns) -> None:
        self.layout, self.turns = context.layout, turns

    def look(self) -> None:
        """Answer what is new."""
        if self.turns.due("requests", LOOK_S):
            for request in pending_requests(self.layout, TRAIN_SUPERVISOR):
                refusal = {"refused": f"unknown verb {request.verb}"}
                finish_request(self.layout, TRAIN_SUPERVISOR, request, refusal)
