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
from stoker.corpus.records.by_path import by_path
from stoker.corpus.source.remote_listing import listing_task, repo_of
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import WorkerPool
from stoker.kit.workers.retries import Retries
from stokerd.download.state import LISTER

FOLLOW_EVERY_S = 600.0  # between two questions for new commits
REFUSED_EVERY_S = 600.0  # a gate may open, a token may be renewed
LIST_SETTLES_S = 10.0  # a list of URLs is written in less
SILENT_S = 60.0
# What a second try at once would not change: said in full, and tried again slowly.
REFUSALS = ("gated", "unauthorized", "forbidden", "missing", "vanished", "refused", "offline")
EX_UNAVAILABLE, EX_CONFIG = 69, 78


@dataclass(frozen=True)
class Listed:
    """What the source holds at `revision`, by path; `refused` are (path, reason), some of all."""

    files: Mapping[str, Wanted]
    revision: str
    refused: tuple[tuple[str, str], ...]
    refused_in_all: int


@dataclass(frozen=True)
class NotListed:
    """Why there is no listing now; `cause` is one of retry_rules' names, "list" for a wrong list of URLs, or
    "died". `is_final`: a second try at once would be the same. `is_config`: the configuration is wrong."""

    cause: str
    reason: str
    is_final: bool
    is_config: bool
    wait_s: float


class RemoteLister:
    """One listing at a time. `pinned` is the commit to go on with, None to ask what the revision means."""

    def __init__(
        self, pipeline: Pipeline, pool: WorkerPool[Any], retries: Retries, pinned: str | None
    ) -> None:
        self._source, self._pool, self._retries = pipeline.dataset.source, pool, retries
        self._is_repo = repo_of(self._source) is not None
        self._every_s = min(30.0, max(1.0, pipeline.stage.settle / 3))  # between two looks at a list of URLs
        self._settle_s = min(LIST_SETTLES_S, pipeline.stage.settle)
        self.pinned = pinned
        self._known: str | None = None  # the revision that was listed since our start
        self._rows: list[Wanted] = []
        self._due = 0.0

    def ask_if_due(self) -> None:
        """Start a listing when one is due and none is under way."""
        if LISTER in self._pool or time.monotonic() < self._due or not self._retries.allows(LISTER):
            return
        self._rows = []
        pinned = None if self._source.follow else self.pinned
        module, task = listing_task(self._source, pinned=pinned, known=self._known, settle_s=self._settle_s)
        self._pool.start(Activity("list", module, SILENT_S), LISTER, task, None)

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take the worker's messages."""
        if message["kind"] == "files":
            self._rows += (Wanted.listed(sys.intern(path), *row) for path, *row in message["files"])

    def ended(self, ended: WorkerExit) -> Listed | NotListed | None:
        """What came of a listing; None where nothing is new."""
        result = ended.result or {}
        if result.get("status") not in ("listed", "unchanged"):
            return self._not_listed(ended, result)
        self._retries.succeeded(LISTER)
        follow_s = FOLLOW_EVERY_S if self._source.follow else math.inf
        self._due = time.monotonic() + (follow_s if self._is_repo else self._every_s)
        if result["status"] == "unchanged":
            return None
        files, self._rows = by_path((each.path, each) for each in self._rows), []
        self.pinned = self._known = str(result["revision"])
        refused = tuple((str(path), str(reason)) for path, reason in result["refused"])
        return Listed(files, self.pinned, refused, int(result["refused_in_all"]))

    def _not_listed(self, ended: WorkerExit, result: Mapping[str, Any]) -> NotListed:
        cause = str(result.get("class", "died"))
        wait_s = max(self._retries.failed(LISTER), float(result.get("retry_after_s") or 0.0))
        if cause in REFUSALS:
            wait_s = REFUSED_EVERY_S
        elif cause == "list":
            wait_s = self._every_s
        self._retries.retry_in(LISTER, wait_s)
        return NotListed(
            cause,
            str(result.get("reason") or ended.reason()),
            is_final=cause in (*REFUSALS, "list") or ended.code in (EX_UNAVAILABLE, EX_CONFIG),
            is_config=cause == "list" or ended.code == EX_CONFIG,
            wait_s=wait_s,
        )

    def forget(self, wait_s: float) -> None:
        """Take the last listing for nothing, and ask for another after so many seconds."""
        self._known = self.pinned = None
        self._due = time.monotonic() + wait_s

    def next_due(self, now: float) -> float:
        """When to ask; while a listing is under way its end wakes us."""
        if LISTER in self._pool:
            return math.inf
        return max(now, self._due, self._retries.not_before.get(LISTER, 0.0))
