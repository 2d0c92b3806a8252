"""Reads and answers the requests to a daemon, and reports unreadable ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.kit.events import Events
from stoker.store.errors import StorageError
from stoker.store.layout import StateLayout
from stoker.store.requests import Request, finish_request, pending_requests

Handler = Callable[[Request], Mapping[str, Any] | None]  # returns the outcome; None: it is answered later


class RequestBox:
    """The directory of requests to a daemon."""

    def __init__(self, layout: StateLayout, daemon: str, events: Events) -> None:
        self._layout, self._daemon, self._events = layout, daemon, events
        self._stuck: dict[str, StorageError] = {}

    def read(self) -> list[Request]:
        """Returns the requests to act on, oldest first; records each stuck entry once."""
        known = set(self._stuck)
        requests = pending_requests(self._layout, self._daemon, self._stuck)
        for name in sorted(self._stuck.keys() - known):
            path = self._layout.requests(self._daemon) / name
            reason = f"{self._stuck[name]}; it is passed over: remove it"
            self._events.record("request_stuck", level="warning", path=str(path), reason=reason)
        return requests

    def answer(self, handlers: Mapping[str, Handler]) -> None:
        """Has each request answered by the handler of its verb; refuses other verbs."""
        for request in self.read():
            if (handler := handlers.get(request.verb)) is not None:
                outcome = handler(request)
            else:
                known = ", ".join(sorted(handlers))
                outcome = {"refused": f"unknown verb {request.verb}; this daemon knows {known}"}
            if outcome is not None:
                self.finish(request, outcome)

    def finish(self, request: Request, outcome: Mapping[str, Any]) -> None:
        """Records a request's outcome and removes the request."""
        finish_request(self._layout, self._daemon, request, outcome)
