"""What `stoker notify` reads and keeps: the events in the daemons' logs, and how far each route is."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict
from errno import EACCES, EPERM
from typing import Any

from stoker.cli.notify.due import Progress
from stoker.cli.notify.messages import Event
from stoker.config.schema import Pipeline
from stoker.store.errors import StorageError
from stoker.store.layout import DAEMONS, StateLayout
from stoker.store.log import read_log
from stoker.store.record import read_or_set_aside, values_of, write_record


def read_events(layout: StateLayout) -> dict[str, list[Event]]:
    """Returns each daemon's events in the order of its log. Raises StorageError."""
    logs = {daemon: read_log(layout.events(daemon), rotated=True).entries for daemon in DAEMONS}
    return {
        daemon: [{"daemon": daemon, **entry} for entry in entries if entry.keys() >= {"seq", "time", "event"}]
        for daemon, entries in logs.items()
    }


class SentRecord:
    """The only writer of notify.json: what each route was sent, by its place in the list.

    While the state directory cannot be written, the runtime directory has it, and `trouble` says why. After a
    reboot what was sent meanwhile is sent again. `is_lost`: it is damaged, and nobody knows what was sent.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        layout = pipeline.layout
        self._files = layout.notify, pipeline.runtime.root / layout.notify.name
        found = [read_or_set_aside(file, layout.quarantine) for file in self._files if file.exists()]
        body: Mapping[str, Any] = max(filter(None, found), key=lambda one: one["written"], default={})
        self.trouble, self.is_lost, self._writing = "", bool(found) and not body, threading.Lock()
        self._written, self.heartbeat = body.get("written", 0), float(body.get("heartbeat", 0.0))
        self.routes = [Progress(**values_of(Progress, one)) for one in body.get("routes", ())]

    def write(self) -> None:
        """Writes it durably; raises StorageError where there is no place for it."""
        with self._writing:
            self._written += 1
            body = {"v": 1, "written": self._written, "heartbeat": self.heartbeat}
            body["routes"] = [asdict(progress) for progress in self.routes]
            try:
                write_record(self._files[0], body)
                self.trouble = ""
            except StorageError as problem:
                if problem.errno in (EACCES, EPERM):  # not the daemons' user, who goes on where it can
                    raise
                self.trouble = str(problem)
                write_record(self._files[1], body)
