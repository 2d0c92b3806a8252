"""What `stoker notify` reads and keeps: the events in the daemons' logs, and how far each route is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from errno import EACCES, EPERM
from pathlib import Path
from typing import Any

from stoker.cli.notify.due import Event, Progress
from stoker.config.schema import Pipeline
from stoker.store.errors import StorageError, storage_errors
from stoker.store.log import LogScan
from stoker.store.record import RecordDamaged, read_record, set_aside, values_of, write_record

TAIL_BYTES = 64 << 10  # of a log: a few hundred events
KINDS = {"seq": int, "time": str, "event": str}


def read_events(path: Path, daemon: str, places: Sequence[Sequence[Any]]) -> list[Event]:
    """Returns a log's events in its order, at least those after each place. Raises StorageError."""
    found: list[Event] = []
    for log in (_tail(path), path):  # what begins before every place has all that is after it
        entries = (entry for entry, _ in LogScan(log, rotated=True))
        found = [
            {"daemon": daemon, **entry}
            for entry in entries
            if all(isinstance(entry.get(name), kind) for name, kind in KINDS.items())
        ]
        if found and all(found[0]["seq"] <= seq + 1 and found[0]["time"] <= time for seq, time in places):
            break
    return found


def _tail(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError), storage_errors("read", path), path.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
        return stream.read()
    return b""


class SentRecord:
    """The only writer of notify.json: what each route was sent, by its place in the list.

    While the state directory cannot be written, the runtime directory has it, and `trouble` says why. After a
    reboot what was sent meanwhile is sent again.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._files = pipeline.layout.notify, pipeline.runtime.root / pipeline.layout.notify.name
        self.trouble, self.is_damaged, self._quarantine = "", False, pipeline.layout.quarantine
        found = [*filter(None, map(self._read, self._files))]
        body: Mapping[str, Any] = max(found, key=lambda one: one["written"], default={})
        self._written, self.heartbeat = body.get("written", 0), float(body.get("heartbeat", 0.0))
        self.routes = [Progress(**values_of(Progress, one)) for one in body.get("routes", ())]

    def _read(self, file: Path) -> dict[str, Any] | None:
        """Returns a record; raises UnknownFormat for another version's, which is left as it is."""
        try:
            return read_record(file)
        except RecordDamaged as damage:
            self.is_damaged = True
            with contextlib.suppress(OSError):  # a disk that cannot be written
                set_aside(file, self._quarantine, "damaged", str(damage))
        except FileNotFoundError:
            pass
        return None

    def write(self) -> None:
        """Writes it durably; raises StorageError where there is no place for it."""
        self._written += 1
        body = {"v": 1, "written": self._written, "heartbeat": self.heartbeat}
        body["routes"] = [asdict(progress) for progress in self.routes]
        try:
            write_record(self._files[0], body)
            self.trouble = ""
        except (StorageError, FileNotFoundError) as problem:
            if problem.errno in (EACCES, EPERM):  # not the daemons' user, who goes on where it can
                raise
            self.trouble = str(problem)
            write_record(self._files[1], body)
