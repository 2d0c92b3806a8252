"""Lists a hub's repository or a file of URLs: a worker a listing, asked again when that may bring news."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.fetch.listed import Listed, NotListed, listing_outcome
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.source.remote_listing import listing_task, shown_as
from stoker.kit.backoff import Retries
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import WorkerPool
from stokerd.download.state import LISTER

FOLLOW_EVERY_S = 600.0  # between two questions for new commits
REFUSED_EVERY_S = 600.0  # a gate may open, a token may be renewed
LIST_SETTLES_S = 10.0  # a list of URLs is written in less
SILENT_S = 60.0


class RemoteLister:
    """One listing at a time. `pinned` is the commit to go on with, None to ask what the revision means;
    `retry_at` is when to try again after a failure, monotonic seconds."""

    def __init__(
        self, pipeline: Pipeline, pool: WorkerPool[Any], retries: Retries, pinned: str | None
    ) -> None:
        self._source, self._pool, self._retries = pipeline.dataset.source, pool, retries
        self._is_repo, self._shown = self._source.kind == "hub", shown_as(self._source)
        self._every_s = min(30.0, max(1.0, pipeline.stage.settle / 3))  # between two looks at a list of URLs
        self._settle_s = min(LIST_SETTLES_S, pipeline.stage.settle)
        self.pinned = pinned
        self._known: str | None = None  # the revision that was listed since our start
        self._rows: list[RemoteFile] = []
        self._due = self.retry_at = 0.0

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
            self._rows += (RemoteFile.listed(sys.intern(path), *row) for path, *row in message["files"])

    def ended(self, ended: WorkerExit) -> Listed | NotListed | None:
        """What came of a listing; None where nothing is new."""
        rows, self._rows = self._rows, []
        found, now = listing_outcome(ended, rows, self._shown), time.monotonic()
        if isinstance(found, NotListed):
            wait_s = max(self._retries.failed(LISTER), found.retry_after_s)
            if found.is_refusal:
                wait_s = REFUSED_EVERY_S
            elif found.is_config:
                wait_s = self._every_s
            self._retries.retry_in(LISTER, wait_s)
            self.retry_at = now + wait_s
            if found.cause == "empty":
                self._known = self.pinned = None
            return found
        self._retries.succeeded(LISTER)
        follow_s = FOLLOW_EVERY_S if self._source.follow else math.inf
        self._due = now + (follow_s if self._is_repo else self._every_s)
        if found is not None:
            self.pinned = self._known = found.revision
        return found

    def next_due(self, now: float) -> float:
        """When to ask; while a listing is under way its end wakes us."""
        if LISTER in self._pool:
            return math.inf
        return max(now, self._due, self._retries.not_before.get(LISTER, 0.0))
