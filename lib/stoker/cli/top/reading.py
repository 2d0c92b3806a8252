"""What `stoker top` reads: a file again only once it has changed, of a log the end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from stoker.checkpoints.retention import counts
from stoker.cli.pipeline.events import ROUTINE
from stoker.config.schema import Pipeline
from stoker.observe.status import read_status
from stoker.plan.timelines import ancestry, read_timelines
from stoker.store.layout import DAEMONS, TRAIN_SUPERVISOR
from stoker.store.record import parse_json, read_whole
from stoker.supervise.outlook import gather, run_record
from stoker.supervise.run.launch_ends import LaunchEnd, parse_end
from stoker.supervise.run.step_rows import rows_of

T = TypeVar("T")
Entries = tuple[list[dict[str, Any]], list[str]]  # of a log, and sentences on what of it cannot be read

TAIL_BYTES = 32 << 10  # of each log of events and launches
STEPS_BYTES = 256 << 10  # of the training log: some 800 steps
STEP = ("step", "loss", "tokens_per_s")
MOST_EVENTS = 200
TIMES_S, SLIDE_S = 60.0, 900.0  # times left: at most so often, and so often where nothing changes


class Reading:
    """The facts of a pipeline, and the ends of its logs."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.run = pipeline.layout.run(pipeline.train.run)
        self.facts = gather(pipeline)
        self._gathered, self._stamp = time.monotonic(), self._basis()
        self._kept: dict[str, tuple[object, Any]] = {}

    def renew(self) -> None:
        """Reads the statuses of the daemons and the run's record; the times left if they may have changed."""
        daemons = read_status(self.pipeline.layout)
        # The times left come from megabytes: read again and again, they would take more than all the rest.
        if (since_s := time.monotonic() - self._gathered) >= TIMES_S:
            stamp = self._basis()
            if stamp != self._stamp or since_s >= SLIDE_S:
                self._gathered, self._stamp = time.monotonic(), stamp
                self.facts = gather(self.pipeline, daemons)
                return
        needed = {daemon: daemons[daemon] for daemon in self.facts.daemons}
        self.facts = replace(self.facts, daemons=needed, record=run_record(self.pipeline))

    def _basis(self) -> object:
        """Returns what changes when the files do from which times left follow."""
        return _stamps(self.run.metrics, *(self.pipeline.layout.samples(daemon) for daemon in DAEMONS))

    def _unless_changed(self, name: str, read: Callable[[], T], *files: Path) -> T:
        """Returns what `read` returned when one of the files last changed."""
        stamp = _stamps(*files)
        if name not in self._kept or self._kept[name][0] != stamp:
            self._kept[name] = stamp, read()
        kept: T = self._kept[name][1]
        return kept

    def events(self) -> Entries:
        """Returns every daemon's last events but routine ones, newest first, each with its `daemon`."""
        logs = {daemon: self.pipeline.layout.events(daemon) for daemon in DAEMONS}
        return self._unless_changed("events", lambda: _events(logs), *logs.values())

    def launches(self) -> Entries:
        """Returns the last launches, newest first, as dictionaries of LaunchEnd; the current one is first."""
        files = self.run.runs, self.run.goodput
        return self._unless_changed("launches", lambda: _launches(*files), *files)

    def steps(self) -> list[dict[str, Any]]:
        """Returns what is drawn of the last steps that count, in order; raises StorageError, DataError."""
        files = self.run.metrics, self.run.timelines
        return self._unless_changed("steps", lambda: _steps(*files), *files)

    def launch(self) -> str | None:
        """Returns the launch that runs now."""
        about = self.facts.daemons[TRAIN_SUPERVISOR]
        return about["body"].get("launch") if about["running"] else None


def tail(log: Path, most_bytes: int = TAIL_BYTES) -> Entries:
    """Returns the entries of a log's end, oldest first; of a missing log none."""
    entries, damaged = list[dict[str, Any]](), 0
    try:
        with log.open("rb") as stream:
            if (start := stream.seek(0, os.SEEK_END) - most_bytes) > 0:
                stream.seek(start)
                stream.readline()  # begins in the middle
            else:
                stream.seek(0)
            data = stream.read(most_bytes)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{log} cannot be read: {error.strerror}"]
    for line in data.split(b"\n")[:-1]:  # the last one is being written
        entry: Any = None
        with contextlib.suppress(ValueError):
            entry = parse_json(line)
        if isinstance(entry, dict):
            entries.append(entry)
        else:
            damaged += 1
    return entries, [f"{log}: {damaged} of its last lines cannot be read"] if damaged else []


def _events(logs: Mapping[str, Path]) -> Entries:
    events, troubles = list[dict[str, Any]](), list[str]()
    for daemon, log in logs.items():
        for file in (log.with_name(f"{log.name}.1"), log):  # a log that was just rotated is short
            entries, trouble = tail(file)
            told = (entry for entry in entries if entry.get("event") not in ROUTINE)
            events += [{**entry, "daemon": daemon} for entry in told]
            troubles += trouble
    events.sort(key=lambda event: str(event.get("time")))
    return events[: -MOST_EVENTS - 1 : -1], troubles


def _launches(log: Path, books: Path) -> Entries:
    bodies, troubles = tail(log)
    current = (read_whole(books) or {}).get("launch")
    launches = dict[str, LaunchEnd]()
    for body in chain(bodies, [current] if current else []):
        try:
            launches.setdefault(body["launch"], parse_end(body))
        except (KeyError, TypeError):
            troubles.append(f"{log}: a line is no launch")
    shown = [{**vars(one), "wall_s": one.wall_s, "goodput": one.goodput} for one in launches.values()]
    return shown[::-1], troubles


def _steps(log: Path, timelines: Path) -> list[dict[str, Any]]:
    history = ancestry(read_timelines(timelines))
    return [
        {column: row.get(column) for column in STEP}
        for row in rows_of(log, tail_bytes=STEPS_BYTES)
        if "loss" in row and counts(row["timeline"], row["step"], history)
    ]


def _stamps(*files: Path) -> tuple[tuple[int, ...] | None, ...]:
    return tuple(map(_stamp, files))


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
