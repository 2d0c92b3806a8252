"""A source that is fetched into the landing: a repository on a hub, or a list of URLs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from stoker.corpus.fetch import decide
from stoker.corpus.fetch.decide import Change, FetchMessage, RemoteRules, parse, stretch_of
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.records.receipts import Listing, Unneeded
from stoker.corpus.records.record_dir import RecordDir
from stoker.corpus.records.sources import Source as SourceRecord
from stoker.corpus.records.sources import read_source
from stoker.corpus.source.folder import file_of
from stoker.corpus.source.remote_listing import (
    Listed,
    NotListed,
    listing_outcome,
    listing_task,
    origin_of,
    repo_of,
    shown_as,
)
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Activity, Job, WorkerPool
from stoker.store.errors import ConfigError, UnavailableError
from stokerd.download.fetcher import Fetcher, FetchFailures
from stokerd.download.source import Source, some
from stokerd.download.state import LISTER, Work

SHOWN_FILES = 20
LIST_TRIES_ONCE = 8  # tries with --once while listings fail for a transient reason: a minute or two
FOLLOW_EVERY_S = 600.0  # between two checks for new commits
REFUSED_EVERY_S = 600.0  # retry after a refusal: the owner may grant access or the operator renew a token
LIST_SETTLES_S = 10.0  # writing a list of URLs takes less
LIST_SILENT_S = 60.0
STRETCH_EVERY_S = 2.0


class RemoteSource(Source[RemoteFile]):
    """The listed files, their receipts, and the one worker that fetches missing files."""

    def __init__(self, context: DaemonContext, pool: WorkerPool[Work]) -> None:
        self.source, self.root = context.pipeline.dataset.source, str(context.pipeline.source_root)
        self.repo = repo_of(self.source)
        self.rules = RemoteRules(self.root, self.repo)
        super().__init__(context, pool, self.rules, shown=shown_as(self.source))
        self.origin, head = origin_of(self.source), self.written
        self.revision = head.revision if head and head.origin == self.origin else ""
        self.found: list[RemoteFile] = []  # by the present listing
        self.fetcher = Fetcher(context, pool, self.state)
        self.failures = FetchFailures(context, self.state, is_repo=self.repo is not None)
        # With a limit of rows or tokens: the files to have now, by the stage-shard loop's counts.
        self.is_bounded = bool(self.pipeline.dataset.limit.rows or self.pipeline.dataset.limit.tokens)
        self.stretch, self.is_whole = frozenset[str](), not self.is_bounded
        self.stretch_due = 0.0
        self.source_records = RecordDir(
            self.layout.sources, self.dataset, SourceRecord.from_record, patient=True
        )

    @property
    def trouble(self) -> str:
        return self.state.pauses.reason("landing", "access", "listing")

    # Listing

    def refresh(self) -> None:
        """Starts a listing when due; updates how far the slice is counted."""
        now = time.monotonic()
        if LISTER not in self.pool and now >= self._listing_due():
            self.found = []
            task = listing_task(
                self.source,
                pinned=None if self.source.follow else self.revision or None,
                known=self.revision if self.seen else None,
                settle_s=min(LIST_SETTLES_S, self.pipeline.stage.settle),
            )
            lister = Activity("list", self.source.spec.lister, LIST_SILENT_S)
            self.pool.start(lister, LISTER, task, Work(self.dataset))
        if self.seen and self.is_bounded and now >= self.stretch_due:
            self._select(self.state.work.listed)

    def _listing_due(self) -> float:
        return max(self.look_due, self.state.retries.not_before.get(LISTER, 0.0))

    def _listing_ended(self, ended: WorkerExit) -> None:
        found = listing_outcome(ended, self.found, self.shown)
        self.found = []
        if isinstance(found, NotListed):
            self._not_listed(found)
            return
        self.state.retries.succeeded(LISTER)
        self.state.pauses.end("listing", "source_available", path=self.shown)
        follow_s = FOLLOW_EVERY_S if self.source.follow else math.inf
        self.look_due = time.monotonic() + (self.look_every_s if self.repo is None else follow_s)
        if found is not None:
            self._take_listed(found)

    def _take_listed(self, listed: Listed) -> None:
        """Records a new listing: new and vanished files."""
        before, self.revision, self.seen = self.revision, listed.revision, True
        fields = {"source": self.shown, "revision": self.revision}
        if not before:
            self.events.record("source_pinned", **fields)
        elif before != self.revision:
            self.events.record("source_moved", **fields, before=before)
        for path, reason in listed.refused:
            self.warn_once("source_refused", path, reason)
        work = self.state.work
        self._select(dict(islice(listed.files.items(), self.pipeline.dataset.limit.files)))
        for path, transfer in self.state.transfers.items():
            file, wish = work.pending.get(path), transfer.wish
            if file is None:
                self.fetcher.leave(path)
            elif (
                wish is None
                or file.at(self.repo, wish.revision).url != wish.url
                or (file.identity != wish.identity)
            ):
                self.fetcher.end()  # the next worker gets the files that are listed now
        if before != self.revision:
            for path in self.state.paths["given_up"]:
                self.state.try_again(path)
        receipts = self.state.receipts.items()
        gone = [path for path, receipt in receipts if path not in work.listed and receipt.usable]
        self.tell_vanished(gone, "it is not listed any more; its receipt is kept")

    def _select(self, listed: Mapping[str, RemoteFile]) -> None:
        before, selected = self.stretch, listed
        if self.is_bounded:
            self.stretch_due = time.monotonic() + STRETCH_EVERY_S
            files = tuple(self.sized(listed))
            listing = Listing(self.dataset, files, False, self.revision, self.origin)
            self.stretch, self.is_whole = stretch_of(listing, self.source_records.read(), self.pipeline)
            selected = {path: file for path, file in listed.items() if path in self.stretch}
        if listed is not self.state.work.listed or self.stretch != before:
            self.take_listing(listed, selected, f"the listing of {self.shown}")

    def _not_listed(self, found: NotListed) -> None:
        retries = self.state.retries
        wait_s = max(retries.failed(LISTER), found.retry_after_s)
        if found.is_refusal:
            wait_s = REFUSED_EVERY_S
        elif found.is_config:
            wait_s = self.look_every_s
        if found.cause == "empty" and not self.seen:
            self.revision = ""  # another commit may hold files
        retries.retry_in(LISTER, wait_s)
        until, tries = retries.not_before[LISTER], retries.failures(LISTER)
        self.state.pauses.begin("listing", "source_unavailable", found.reason, until=until, kind=found.cause)
        if self.context.once and (found.is_final or tries >= LIST_TRIES_ONCE):
            raise (ConfigError if found.is_config else UnavailableError)(found.reason)

    # Bringing

    def bring(self) -> None:
        """Finishes removals, then fetches missing files into the free slots."""
        self.fetcher.end_if_idle()
        state, now = self.state, time.monotonic()
        releasing = state.paths["releasing"]
        if due := releasing - state.removing:
            if now < state.pauses.until("removal") or not self.fetcher.start_if_needed():
                return
            for path in due:
                self.fetcher.remove(path)
        if not self.seen and not state.work.reasked:
            return
        slots = self.failures.slots(self.fetcher.free, now)
        for wanted in state.work.next(
            slots, lambda path: path not in releasing and state.may_begin(path, now)
        ):
            receipt = state.receipts.get(wanted.path)
            if receipt is not None and self.rules.step(wanted, receipt) == "release":
                self.apply(decide.listed_otherwise(receipt))
            elif not self.fetcher.start_if_needed():
                return
            else:
                # A list of URLs has a revision, but its files have none.
                revision = wanted.revision or (self.revision if self.repo else "")
                self.fetcher.fetch(wanted.at(self.repo, revision, decide.landed_before(receipt, wanted)))

    # Hearing

    def hear(self, job: Job[Work], message: Mapping[str, Any]) -> None:
        if job.subject == LISTER:
            if message["kind"] == "files":
                rows = ((sys.intern(path), *row) for path, *row in message["files"])
                self.found += (RemoteFile.listed(*row) for row in rows)
            return
        said = parse(message)
        wish = self.fetcher.hear(said)
        match said.kind:
            case "ready":
                self.state.pauses.end("landing", "landing_available", path=self.root)
                self.take_unmanaged(said.unmanaged, len(said.unmanaged))
            case "progress":
                self.failures.went_well()
            case "done" if wish is not None:
                self.failures.went_well(said.path)
                self._change(decide.fetched, wish, said)
            case "failed" if wish is not None:
                if self.failures.failed(said):
                    self._change(decide.given_up, wish)
            case "removed":
                self.state.pauses.end("removal")
                self.apply(decide.removed(self.state.receipts.get(said.path)))
            case "not_removed":
                self.failures.not_removed(said.path, said.reason)

    def ended(self, job: Job[Work], ended: WorkerExit) -> None:
        if job.subject == LISTER:
            self._listing_ended(ended)
        elif reason := self.fetcher.ended(ended):
            self.failures.no_landing(reason)

    def _change(self, change: Callable[..., Change], file: RemoteFile, *more: FetchMessage) -> None:
        place = file_of(self.root, file.path)
        self.apply(change(self.state.receipts.get(file.path), self.dataset, place, file, *more))

    # Demands of the stage-shard loop, and requests

    def released(self, path: str, unneeded: Unneeded) -> Change:
        kept = partial(
            decide.still_needed,
            path,
            unneeded,
            partial(read_source, self.layout, self.dataset),
            release=self.pipeline.shard.release,
            has_warm=self.pipeline.warm is not None,
        )
        return decide.released(self.state.receipts.get(path), path, unneeded.sha256, kept)

    def fetched_again(self, path: str, sha256: str | None, by: str) -> Change:
        receipt, listed = self.state.receipts.get(path), self.state.work.listed.get(path)
        if receipt is not None:
            wanted = listed or self.rules.wanted_again(replace(receipt, state="disputed"))
            return decide.fetched_again(receipt, sha256, wanted, by)
        if listed is None:
            return decide.refused(f"{self.shown} does not list {path}")
        return Change(answer={"receipt": "none"})

    # Status

    def counts(self) -> dict[str, int]:
        counts = self.state.work.counts
        fetching = min(self.state.transfers.in_hand(), counts["waiting"])
        return {**counts, "waiting": counts["waiting"] - fetching, "fetching": fetching}

    def status(self) -> dict[str, Any]:
        work, transfers, pauses = self.state.work, self.state.transfers, self.state.pauses
        now = time.monotonic()
        self.failures.look_at_waits(now)
        self.fetcher.claim()
        return {
            "revision": self.revision,
            "landing": self.root,
            **transfers.how_far(work.bytes, work.bytes_left, now),
            "transfers": transfers.shown(SHOWN_FILES),
            "paused": self.failures.paused,
            "waits": self.failures.waits,
            "is_paused": {
                "disk": bool(pauses.reason("disk", "landing")),
                "source": bool(pauses.reason("access", "listing")),
                "state": self.context.reserve.spent,
                "server": bool(self.failures.waits),
            },
            "fetched_bytes": transfers.received,
            "durable_bytes": transfers.durable,
        }

    def next_due(self, now: float) -> float:
        listing = math.inf if LISTER in self.pool else max(now, self._listing_due())
        is_kept = not self.seen or self._kept == (self.listed, self.state.changes)
        writing = math.inf if is_kept else max(now, self.listing_due)
        return min(listing, self.failures.next_due(now), self.state.next_retry(now), writing)

    # End of --once

    def is_drained(self) -> bool:
        """Also requires that every pending removal is done."""
        return super().is_drained() and not self.state.paths["releasing"]

    def summary(self) -> tuple[str, int]:
        """Returns the summary and the exit code: 1 if files were given up, which the summary names."""
        self.fetcher.claim(at_end=True)
        counts, work, only = self.state.work.counts, self.state.work, self.state.only
        text = f"{counts['verified']:,} file{'s' * (counts['verified'] != 1)} verified"
        for state in ("unproven", "released"):
            text += f", {counts[state]} {state}" if counts[state] else ""
        if missing := [path for path in work.pending if only is None or path in only]:
            text += f", {len(missing)} given up: {some(missing)}; stoker events says why"
        elif work.selected and self.is_bounded and not self.is_complete:
            text += ", more come when the loop has counted these"
        return text, 1 if missing else 0
