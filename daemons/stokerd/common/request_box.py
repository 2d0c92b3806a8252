"""What others ask of one daemon: read, answered, and told of where it cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.kit.events import Events
from stoker.store.errors import StorageError
from stoker.store.layout import StateLayout
from stoker.store.requests import Request, finish_request, pending_requests


class RequestBox:
    """A daemon's folder of requests."""

    def __init__(self, layout: StateLayout, daemon: str, events: Events) -> None:
        self._layout, self._daemon, self._events = layout, daemon, events
        self._stuck: dict[str, StorageError] = {}

    def read(self) -> list[Request]:
        """The requests to act on, oldest first; what can be neither read nor moved is told once."""
        known = set(self._stuck)
        requests = pending_requests(self._layout, self._daemon, self._stuck)
        for name in sorted(self._stuck.keys() - known):
            path = self._layout.requests(self._daemon) / name
            reason = f"{self._stuck[name]}; it is passed over: remove it"
            self._events.record("request_stuck", level="warning", path=str(path), reason=reason)
        return requests

    def finish(self, request: Request, outcome: Mapping[str, Any]) -> None:
        """Record a request's outcome and take the request away."""
        finish_request(self._layout, self._daemon, request, outcome)
