"""What has been asked of a daemon."""

from __future__ import annotations

import contextlib

from stoker.store.layout import StateLayout
from stoker.store.record import read_record
from stoker.store.requests import Request


def filed_requests(layout: StateLayout, daemon: str) -> list[Request]:
    """The requests that a daemon has not answered yet; looking at them moves nothing."""
    found = []
    for path in sorted(layout.requests(daemon).glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # answered just now
            body = read_record(path)
            found.append(Request(body["id"], body["verb"], body["args"], body["if"], body["by"]))
    return found
