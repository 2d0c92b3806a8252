"""Looks at the source folder: a lister worker kept at work, asked for a look whenever one is due."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.source.arrivals import Look, Watched
from stoker.corpus.source.folder import FileSeen
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.pool import WorkerPool
from stoker.kit.workers.retries import Retries

LISTER = "/lister"  # no source's path begins with a slash
_SHORTEST_REST_S, _LONGEST_REST_S = 0.2, 5.0  # between a look and the next that a change asks for
QUIET_S = 60.0  # it says something every 5 s and in every folder it enters


class SourceLister:
    """One look at a time, every `every_s` seconds and when something changed; `looks` counts the finished."""

    def __init__(self, pipeline: Pipeline, crew: WorkerPool[Any], patience: Retries) -> None:
        source = pipeline.dataset.source
        self._task = {
            "role": "folder",
            "root": str(source.path),
            "include": list(source.include),
            "exclude": list(source.exclude),
            "state": str(pipeline.state),
            "owner": pipeline.owner,
        }
        self.every_s = min(30.0, max(1.0, pipeline.stage.settle / 3))
        self._crew, self._patience = crew, patience
        self._settle_s = pipeline.stage.settle
        self._found: dict[str, Watched] = {}  # of the look under way
        self._looking = False
        self._asked = self._over = 0.0  # when the last look was asked for, and when one was over
        self.due = 0.0  # monotonic seconds
        self.looks = 0

    def ask_if_due(self) -> None:
        """Keep a lister running and ask it for a look when one is due and none is under way."""
        if LISTER not in self._crew:
            if not self._patience.allows(LISTER):
                return
            module = "stoker.corpus.staging.lister_worker"
            self._crew.start(Activity("list", module, QUIET_S, keep_open=True), LISTER, self._task, None)
            self._looking = False
        if not self._looking and time.monotonic() >= self.due:
            self._looking = True
            self._asked = time.monotonic()
            self._found = {}
            self._crew[LISTER].worker.send({"look": self.looks + 1})

    def ask_soon(self) -> None:
        """Have another look as soon as the one under way, if any, is over."""
        self.due = 0.0

    def hear(self, message: Mapping[str, Any]) -> Look | None:
        """Take the lister's words; the look when it is over."""
        if message["kind"] == "files":
            at: dict[str, Any] = {"now": time.monotonic(), "wall_ns": time.time_ns()}
            seen = (FileSeen(sys.intern(path), *rest) for path, *rest in message["files"])
            self._found |= {file.path: Watched.first(file, settle_s=self._settle_s, **at) for file in seen}
        if message["kind"] == "changed":  # a folder that changes all the time is not looked at all the time
            rest_s = min(_LONGEST_REST_S, max(_SHORTEST_REST_S, self._over - self._asked))
            self.due = min(self.due, self._over + rest_s)
        if message["kind"] != "looked":
            return None
        self._looking = False
        self.looks += 1
        self._over = time.monotonic()
        self.due = self._over + self.every_s
        self._patience.succeeded(LISTER)
        found, self._found = self._found, {}
        return Look(
            files=found,
            refused=tuple((path, reason) for path, reason in message["refused"]),
            unreadable=tuple((path, reason) for path, reason in message["unreadable"]),
            missing=bool(message["missing"]),
            polling=str(message["polling"]),
            foreign=tuple(message["foreign"]),
            foreign_in_all=int(message["foreign_in_all"]),
        )

    def next_due(self, now: float) -> float:
        """When to ask again; while a look is under way, its end wakes us."""
        return (
            now + self.every_s if self._looking else max(self.due, self._patience.not_before.get(LISTER, 0.0))
        )
