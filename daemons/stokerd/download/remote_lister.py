"""Lists a hub's repository or a file of URLs: a worker a listing, asked again when that may bring news."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.fetch.selection import Wanted
from stoker.corpus.http.remote_file import shown
from stoker.corpus.records.by_path import by_path
from stoker.corpus.source.remote_listing import listing_task, origin_of, repo_of
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import WorkerPool
from stoker.kit.workers.retries import Retries

LISTER = "/lister"  # no source's path begins with a slash
FOLLOW_EVERY_S = 600.0  # between two questions for new commits
REFUSED_EVERY_S = 600.0  # a gate may open, a token may be renewed
LIST_SETTLES_S = 10.0  # a list of URLs is written in less
QUIET_S = 60.0
# What a second try at once would not change: said in full, and tried again slowly.
REFUSALS = ("gated", "unauthorized", "forbidden", "missing", "vanished", "refused", "offline")


@dataclass(frozen=True)
class Listed:
    """What the source holds at `revision`, by path; `refused` are (path, reason), some of all."""

    files: Mapping[str, Wanted]
    revision: str
    refused: tuple[tuple[str, str], ...]
    refused_in_all: int


@dataclass(frozen=True)
class NotListed:
    """Why there is no listing now; `kind` is one of fetch's names, "list" for a wrong list of URLs, or
    "died". `final`: a second try at once would be the same. `code` is the exit code that it deserves."""

    kind: str
    reason: str
    final: bool
    wait_s: float
    code: int | None = None


class RemoteLister:
    """One listing at a time. `pinned` is the commit to go on with, None to ask what the revision means."""

    def __init__(self, pipeline: Pipeline, crew: WorkerPool[Any], patience: Retries) -> None:
        self._source, self._crew, self._patience = pipeline.dataset.source, crew, patience
        self._every_s = min(30.0, max(1.0, pipeline.stage.settle / 3))  # between two looks at a list of URLs
        self._settle_s = min(LIST_SETTLES_S, pipeline.stage.settle)
        self.repo = repo_of(self._source)
        self.pinned: str | None = None
        self.known: str | None = None  # the revision that was listed since our start
        self._rows: list[Wanted] = []
        self._due = 0.0
        self.origin = origin_of(self._source)
        self.shown = self.origin if self.repo is None else shown(self.repo.page)

    def ask_if_due(self) -> None:
        """Start a listing when one is due and none is under way."""
        if LISTER in self._crew or time.monotonic() < self._due or not self._patience.allows(LISTER):
            return
        self._rows = []
        pinned = None if self._source.follow else self.pinned
        module, task = listing_task(self._source, pinned=pinned, known=self.known, settle_s=self._settle_s)
        self._crew.start(Activity("list", module, QUIET_S), LISTER, task, None)

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take the worker's words."""
        if message["kind"] == "files":
            self._rows += (Wanted.listed(sys.intern(path), *row) for path, *row in message["files"])

    def ended(self, ended: WorkerExit) -> Listed | NotListed | None:
        """What came of a listing; None where nothing is new."""
        result = ended.result or {}
        if result.get("status") in ("listed", "unchanged"):
            self._patience.succeeded(LISTER)
            self._due = time.monotonic() + self._rest_s()
            if result["status"] == "unchanged":
                return None
            files, self._rows = by_path((each.path, each) for each in self._rows), []
            self.known = result["revision"]
            self.pinned = self.known
            refused = tuple((str(path), str(reason)) for path, reason in result["refused"])
            return Listed(files, result["revision"], refused, result["refused_in_all"])
        return self._not_listed(ended, result)

    def _rest_s(self) -> float:
        if self.repo is None:
            return self._every_s
        return FOLLOW_EVERY_S if self._source.follow else math.inf

    def _not_listed(self, ended: WorkerExit, result: Mapping[str, Any]) -> NotListed:
        kind = str(result.get("class", "died"))
        wait_s = self._patience.failed(LISTER)
        if kind in REFUSALS:
            wait_s = REFUSED_EVERY_S
        elif kind == "list":
            wait_s = self._every_s
        else:
            wait_s = max(wait_s, float(result.get("retry_after_s") or 0.0))
        self._patience.retry_in(LISTER, wait_s)
        return NotListed(
            kind,
            str(result.get("reason") or ended.reason()),
            final=kind in (*REFUSALS, "list") or ended.code in (69, 78),
            wait_s=wait_s,
            code=78 if kind == "list" else ended.code,
        )

    def forget(self, wait_s: float) -> None:
        """Take what was listed for nothing, and list anew after so many seconds."""
        self.known = self.pinned = None
        self._due = time.monotonic() + wait_s

    def next_due(self, now: float) -> float:
        """When to ask; while a listing is under way its end wakes us."""
        if LISTER in self._crew:
            return math.inf
        return max(now, self._due, self._patience.not_before.get(LISTER, 0.0))
