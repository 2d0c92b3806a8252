"""A source that is fetched into the landing: a repository on a hub, or a list of URLs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stoker.corpus.fetch import receipt_changes, selection
from stoker.corpus.fetch.messages import Said, parse
from stoker.corpus.fetch.receipt_changes import Change
from stoker.corpus.fetch.selection import RemoteRules, Stretch, landed_before, stretch_of
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import LOCAL
from stoker.corpus.records.receipts import Listing, Unneeded, first
from stoker.corpus.records.record_dir import RecordDir
from stoker.corpus.records.sources import Source as SourceRecord
from stoker.corpus.records.sources import read_source
from stoker.corpus.source.arrivals import file_of
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
from stokerd.download.failures import FetchFailures
from stokerd.download.fetcher import FETCHER, Fetcher
from stokerd.download.source import Source, some
from stokerd.download.state import LISTER

SHOWN_FILES = 20
LIST_TRIES_ONCE = 8  # tries with --once while listings fail for a transient reason: a minute or two
FOLLOW_EVERY_S = 600.0  # between two checks for new commits
REFUSED_EVERY_S = 600.0  # retry after a refusal: the owner may grant access or the operator renew a token
LIST_SETTLES_S = 10.0  # writing a list of URLs takes less
LIST_SILENT_S = 60.0
STRETCH_EVERY_S = 2.0


class RemoteSource(Source[RemoteFile]):
    """The listed files, their receipts, and the one worker that fetches missing files.

    `pinned` is the commit to use; None resolves the source's revision.
    """

    def __init__(self, context: DaemonContext, pool: WorkerPool[Any]) -> None:
        self.source, self.root = context.pipeline.dataset.source, str(context.pipeline.source_root)
        self.repo = repo_of(self.source)
        self.rules = RemoteRules(self.root, self.repo)
        super().__init__(context, pool, self.rules, shown=shown_as(self.source))
        head = self.effects.listing
        self.origin, self.revision = origin_of(self.source), head.revision if head else ""
        self.pinned = head.revision or None if head and head.origin == self.origin else None
        self.found: list[RemoteFile] = []  # by the present listing
        self.fetcher = Fetcher(context, pool, self.state)
        self.failures = FetchFailures(context, self.state, is_repo=self.repo is not None)
        # With a limit of rows or tokens: the files to have now, by the stage-shard loop's counts.
        self.is_bounded = bool(self.pipeline.dataset.limit.rows or self.pipeline.dataset.limit.tokens)
        self.stretch = Stretch(frozenset(), is_whole=not self.is_bounded)
        self.stretch_due = 0.0
        layout = context.layout
        self.source_records = RecordDir(layout.sources, self.dataset, SourceRecord.from_record, patient=True)

    @property
    def trouble(self) -> str:
        return self.state.pauses.reason("landing", "access", "listing")

    @property
    def is_complete(self) -> bool:
        work, is_whole = self.state.work, self.stretch.is_whole
        return is_whole and selection.is_complete(work.selected, work.pending, self.state.receipts)

    # Listing

    def look(self) -> None:
        """Starts a listing when due; updates how far the slice is counted."""
        if LISTER not in self.pool and time.monotonic() >= self._listing_due():
            self.found = []
            module, task = listing_task(
                self.source,
                pinned=None if self.source.follow else self.pinned,
                known=self.revision if self.seen else None,
                settle_s=min(LIST_SETTLES_S, self.pipeline.stage.settle),
            )
            self.pool.start(Activity("list", module, LIST_SILENT_S), LISTER, task, None)
        if self.seen and self.is_bounded and time.monotonic() >= self.stretch_due:
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
        before, self.pinned = self.pinned, listed.revision
        told = {"source": self.shown, "revision": listed.revision}
        if before is None:
            self.events.record("source_pinned", **told)
        elif before != listed.revision:
            self.events.record("source_moved", **told, before=before)
        for path, reason in listed.refused:
            self.effects.warn_once("source_refused", path, reason)
        is_other = listed.revision != self.revision
        self.seen, self.revision = True, listed.revision
        work = self.state.work
        self._select(first(listed.files, self.pipeline.dataset.limit.files))
        for path, transfer in self.state.transfers.items():
            file, wish = work.pending.get(path), transfer.wish
            if file is None or wish is None or file.identity != wish.identity:
                self.fetcher.drop(path)
        if is_other:
            self.failures.listed_anew()
        receipts = self.state.receipts.items()
        gone = [path for path, receipt in receipts if path not in work.listed and receipt.usable]
        self.tell_vanished(gone, "it is not listed any more; its receipt is kept")

    def _select(self, listed: Mapping[str, RemoteFile]) -> None:
        before, selected = self.stretch, listed
        if self.is_bounded:
            self.stretch_due = time.monotonic() + STRETCH_EVERY_S
            files = tuple(self.sized(listed))
            listing = Listing(self.dataset, files, False, self.revision, self.origin)
            self.stretch = stretch_of(listing, self.source_records.read(), self.pipeline)
            selected = {path: file for path, file in listed.items() if path in self.stretch.paths}
        if listed is not self.state.work.listed or self.stretch != before:
            self.take_listing(listed, selected, f"the listing of {self.shown}")

    def _not_listed(self, found: NotListed) -> None:
        retries = self.state.retries
        wait_s = max(retries.failed(LISTER), found.retry_after_s)
        if found.is_refusal:
            wait_s = REFUSED_EVERY_S
        elif found.is_config:
            wait_s = self.look_every_s
        if found.cause == "empty":
            self.pinned = None
        retries.retry_in(LISTER, wait_s)
        until, tries = retries.not_before[LISTER], retries.failures(LISTER)
        self.state.pauses.begin("listing", "source_unavailable", found.reason, until=until, kind=found.cause)
        if self.context.once and (found.is_final or tries >= LIST_TRIES_ONCE):
            raise (ConfigError if found.is_config else UnavailableError)(found.reason)

    def keep_listing(self) -> None:
        """Writes the listing; before the first listing here, only checks if a complete listing still is."""
        if self.seen:
            super().keep_listing()
        elif self._kept != (0, self.state.changes) and self.effects.is_complete:
            self._kept, listing = (0, self.state.changes), self.effects.listing
            if listing and not selection.still_complete(listing.paths, self.state.receipts):
                self.effects.write_listing(replace(listing, complete=False))

    # Bringing

    def bring(self) -> None:
        """Finishes removals, then fetches missing files into the free slots."""
        self.fetcher.end_if_idle()
        state, now = self.state, time.monotonic()
        if due := state.paths["releasing"] - state.removing:
            if now < state.pauses.until("removal") or not self.fetcher.start_if_needed():
                return
            for path in due:
                self.fetcher.remove(path)
        if not self.seen and not state.work.reasked:
            return
        releasing = state.paths["releasing"]
        slots = self.failures.slots(self.fetcher.free, now)
        for wanted in state.work.next(
            slots, lambda path: path not in releasing and state.may_begin(path, now)
        ):
            receipt = state.receipts.get(wanted.path)
            if receipt is not None and self.rules.step(wanted, receipt) == "release":
                self.effects.apply(receipt_changes.listed_otherwise(receipt))
            elif not self.fetcher.start_if_needed():
                return
            else:
                is_listed = receipt is None or wanted.path in state.work.listed
                revision = self.revision if is_listed or receipt is None else receipt.revision
                # A list of URLs has a revision, but its files have none.
                at = wanted.at(self.repo, revision if self.repo else "", landed_before(receipt, wanted))
                self.fetcher.fetch(at)

    # Hearing

    def hear(self, job: Job[Any], message: Mapping[str, Any]) -> None:
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
                self.take_foreign(said.foreign, len(said.foreign))
            case "progress":
                self.failures.went_well()
            case "done" if wish is not None:
                self.failures.went_well(said.path)
                self._change(receipt_changes.fetched, wish, said)
            case "failed" if wish is not None:
                self._failed(wish, said)
            case "removed":
                self.failures.removed()
                self.effects.apply(receipt_changes.removed(self.state.receipts.get(said.path)))
            case "not_removed":
                self.failures.not_removed(said.path, said.reason)

    def ended(self, job: Job[Any], ended: WorkerExit) -> None:
        if job.subject == FETCHER:
            if reason := self.fetcher.ended(ended):
                self.failures.no_landing(reason)
        else:
            self._listing_ended(ended)

    def _change(self, decide: Callable[..., Change], file: RemoteFile, *more: Said) -> None:
        place = file_of(self.root, file.path)
        self.effects.apply(decide(self.state.receipts.get(file.path), self.dataset, place, file, *more))

    def _failed(self, asked: RemoteFile, message: Said) -> None:
        path, work = asked.path, self.state.work
        wanted = work.selected.get(path) or work.reasked.get(path)
        is_stale = wanted is not None and (wanted.identity, wanted.url or asked.url) != (
            asked.identity,
            asked.url,
        )
        if is_stale and message.cause not in LOCAL:
            return  # another content has been listed since
        if self.failures.failed(message) and wanted is not None:
            self._change(receipt_changes.given_up, asked)

    # Requests

    def released(self, path: str, unneeded: Unneeded) -> Change:
        def kept() -> str:
            return receipt_changes.still_needed(
                path,
                unneeded,
                lambda each: read_source(self.context.layout, self.dataset, each),
                release=self.pipeline.shard.release,
                has_warm=self.pipeline.warm is not None,
            )

        return receipt_changes.released(self.state.receipts.get(path), path, unneeded.sha256, kept)

    def fetched_again(self, path: str, sha256: str | None, by: str) -> Change:
        receipt, listed = self.state.receipts.get(path), self.state.work.listed.get(path)
        if receipt is None:
            is_unknown = f"{self.shown} does not list {path}"
            return (
                receipt_changes.refused(is_unknown) if listed is None else Change(answer={"receipt": "none"})
            )
        wanted = listed or selection.wanted_again(receipt, self.repo)
        return receipt_changes.fetched_again(receipt, sha256, wanted, by)

    # Status

    def counts(self) -> dict[str, int]:
        counts, in_hand = self.state.work.counts, self.state.transfers.in_hand()
        fetching = min(in_hand, counts["waiting"])
        return {**counts, "waiting": counts["waiting"] - fetching, "fetching": fetching}

    def status(self) -> dict[str, Any]:
        work, transfers, pauses = self.state.work, self.state.transfers, self.state.pauses
        now = time.monotonic()
        how_far = transfers.how_far(work.bytes, work.bytes_left, now)
        self.failures.look_at_waits(now)
        self.effects.claim(self.root, self.fetcher.device, transfers.to_come_bytes())
        return {
            "revision": self.revision,
            "landing": self.root,
            **how_far,
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
        due = [listing, self.failures.next_due(now), self.state.next_retry(now)]
        is_kept = self._kept == (self.listed, self.state.changes)
        return min(*due, math.inf if is_kept else max(now, self.listing_due))

    # End of --once

    def is_drained(self) -> bool:
        """Also requires that every pending removal is done."""
        return super().is_drained() and not self.state.paths["releasing"]

    def summary(self) -> tuple[str, int]:
        """Returns the summary and the exit code: 1 if files were given up, which the summary names."""
        self.effects.claim(self.root, self.fetcher.device, 0, at_once=True)
        counts, work, only = self.state.work.counts, self.state.work, self.state.only
        text = f"{counts['verified']:,} file{'s' * (counts['verified'] != 1)} verified"
        for state in ("unproven", "released"):
            text += f", {counts[state]} {state}" if counts[state] else ""
        if missing := [path for path in work.pending if only is None or path in only]:
            text += f", {len(missing)} given up: {some(missing)}; stoker events says why"
        elif work.selected and self.is_bounded and not self.is_complete:
            text += ", more come when the loop has counted these"
        return text, 1 if missing else 0
