"""A folder read in place: waits until a file is stable, hashes it in a worker, and writes its receipt.

Stoker never writes to the folder.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

from stoker.config.units import format_duration
from stoker.corpus.fetch.decide import Change, hashed, looked_at_again, refused
from stoker.corpus.records.receipts import Unneeded
from stoker.corpus.source.folder import (
    DEFAULT_INCLUDE,
    FileSeen,
    FolderRules,
    FolderScan,
    Watched,
    file_of,
    settling,
    watch,
)
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Activity, Job, WorkerPool
from stoker.store.errors import ConfigError, UnavailableError
from stokerd.download.source import Source, some
from stokerd.download.state import LISTER, Work

LOOK_TRIES_ONCE, HASH_TRIES_ONCE = 3, 5
REST_S = 0.5  # before a look after a change: the folder may change all the time
LIST_SILENT_S = 60.0  # the lister reports every 5 s and on every folder it enters
HASHER = "stoker.corpus.source.hash_worker"


class FolderSource(Source[Watched]):
    """One source folder and its known files."""

    trouble = ""

    def __init__(self, context: DaemonContext, pool: WorkerPool[Work]) -> None:
        root = str(context.pipeline.dataset.source.path)
        super().__init__(context, pool, FolderRules(root), shown=root)
        self.settle_s = 0.0 if context.once else self.pipeline.stage.settle
        self.hash = Activity("hash", HASHER, silent_s=self.pipeline.download.stall, is_reusable=True)
        self.is_looking = self.is_settling = False
        self.found: dict[str, Watched] = {}  # by the present look
        self.watched: dict[str, Watched] = {}
        self.polling = ""  # why only looks find changes
        self.is_confirmed = False  # whether a look after the last hash found no changes

    # Listing

    def refresh(self) -> None:
        """Keeps a lister running, and requests a look when due and none is in progress."""
        now = time.monotonic()
        if LISTER not in self.pool:
            if not self.state.retries.allows(LISTER):
                return
            source = self.pipeline.dataset.source
            task = {
                "role": "folder",
                "root": self.shown,
                "include": list(source.include),
                "exclude": list(source.exclude),
                "state": str(self.pipeline.state),
                "owner": self.pipeline.owner,
            }
            lister = Activity("list", source.spec.lister, LIST_SILENT_S, keep_open=True)
            self.pool.start(lister, LISTER, task, Work(self.dataset))
            self.is_looking = False
        if self.context.once and not self.is_confirmed and super().is_drained():
            self.look_due = now
        if not self.is_looking and now >= self.look_due:
            self.is_looking, self.found = True, {}
            self.pool[LISTER].worker.send({"look": 1})

    def hear(self, job: Job[Work], message: Mapping[str, Any]) -> None:
        now = time.monotonic()
        match message["kind"]:
            case "files":
                at: dict[str, Any] = {"now": now, "wall_ns": time.time_ns()}
                seen = (FileSeen(sys.intern(path), *rest) for path, *rest in message["files"])
                stage = self.pipeline.stage
                self.found |= {file.path: Watched.first(file, settle_s=stage.settle, **at) for file in seen}
            case "changed":
                self.look_due = min(self.look_due, now + REST_S)
            case "looked":
                self.is_looking, self.look_due = False, now + self.look_every_s
                self.state.retries.succeeded(LISTER)
                found, self.found = self.found, {}
                self.take_look(FolderScan.of(message, found))
            case "hashed":
                self.state.transfers.moved(job.subject, int(message["bytes"]), 0)
                self.state.progress_at = time.time()

    def take_look(self, look: FolderScan) -> None:
        """Records a finished look: changed, vanished and refused files."""
        self.seen = True
        for path, reason in look.refused:
            self.warn_once("source_refused", path, reason)
        for path, reason in look.unreadable:
            self.warn_once("source_unreadable", path or self.shown, reason)
        self._pause_or_go_on(look)
        if self.trouble:
            return
        if look.polling and look.polling != self.polling:
            every_s = round(self.look_every_s, 1)
            self.events.record("source_polled", path=self.shown, reason=look.polling, every_s=every_s)
        self.take_unmanaged(look.unmanaged, look.unmanaged_in_all)
        before, self.watched = self.watched, watch(self.watched, look.files.values(), time.monotonic())
        was_whole, self.is_whole, self.polling = self.is_whole, not look.unreadable, look.polling
        self.is_confirmed = self.watched == before
        if not self.listed or not self.is_confirmed or was_whole != self.is_whole:
            self.take_files()
        if self.is_whole:
            gone = [path for path in self.state.receipts if path not in self.watched]
            self.tell_vanished(gone, "its receipt is kept")

    def take_files(self) -> None:
        """Updates the files to hash; a file that was just written waits until it has settled."""
        files = dict(islice(self.watched.items(), self.pipeline.dataset.limit.files))
        where = f"the source folder {self.shown}" if self.is_whole else ""
        self.take_listing(files, files, where, held=self.watched)  # including files beyond dataset.limit
        pending = self.state.work.pending.values()
        self.state.retries.not_before |= settling(pending, time.monotonic(), self.settle_s)

    def _settling(self, now: float) -> dict[str, float]:
        """Returns when each pending file that has not settled will have, monotonic seconds by path."""
        retries, pending = self.state.retries, self.state.work.pending
        due = {path: due for path, due in retries.not_before.items() if due > now and path in pending}
        return {path: moment for path, moment in due.items() if not retries.failures(path)}

    def _pause_or_go_on(self, look: FolderScan) -> None:
        self.trouble = look.trouble(self.shown, len(self.state.receipts))
        if self.trouble and self.context.once:
            raise UnavailableError(self.trouble)
        pauses, reason = self.state.pauses, self.trouble or ("" if look.files else self._emptiness(look))
        if not reason:
            pauses.end("listing", "source_available", path=self.shown)
        elif not self.context.once:
            pauses.begin("listing", "source_unavailable", reason, until=math.inf, about=reason)

    def _emptiness(self, look: FolderScan) -> str:
        refused = "".join(f" ({path}: {reason})" for path, reason in look.refused[:1])
        include = ", ".join(self.pipeline.dataset.source.include or DEFAULT_INCLUDE)
        return (
            f"the source folder {self.shown} holds no file that matches {include}{refused}; "
            "put files there, or correct dataset.source.path or include"
        )

    # Hashing

    def bring(self) -> None:
        """Starts to hash stable files, at most download.files_at_once at once."""
        now = time.monotonic()
        state, slots = self.state, self.pipeline.download.files_at_once - len(self.state.transfers)
        if self.trouble or slots <= 0:
            return
        for watched in state.work.next(slots, lambda path: state.may_begin(path, now)):
            file = watched.file
            self.pool.start(self.hash, file.path, file.hash_task(self.shown), Work(self.dataset, file))
            state.transfers.add(file.path, file.size, None)

    def ended(self, job: Job[Work], ended: WorkerExit) -> None:
        if job.subject == LISTER:
            self._lister_ended(ended)
            return
        file = job.facts.file
        assert file is not None  # set where its hashing begins
        result, retries = ended.result or {}, self.state.retries
        self.is_confirmed = False
        if result.get("status") == "hashed":
            self.state.transfers.moved(file.path, file.size, 0)
            self.state.transfers.pop(file.path)
            self.state.try_again(file.path)
            place, before = file_of(self.shown, file.path), self.state.receipts.get(file.path)
            cached, sha256 = bool(result["cached"]), str(result["sha256"])
            self.apply(hashed(before, self.dataset, place, file, sha256, cached=cached))
            return
        self.state.transfers.pop(file.path)
        wait_s = retries.failed(file.path)
        if self.context.once and retries.failures(file.path) >= HASH_TRIES_ONCE:
            self.state.given_up.add(file.path)
        if result:  # changed or missing: the file was not stable
            self.watched[file.path] = Watched(file, time.monotonic())
            self.take_files()
            self.look_due = 0.0
            return
        self.events.record("hash_failed", path=file.path, reason=ended.reason(), retry_in_s=round(wait_s, 1))

    def _lister_ended(self, ended: WorkerExit) -> None:
        """Schedules another lister; raises ConfigError if the lister refused the folder."""
        if ended.code == ConfigError.exit_code:
            raise ConfigError(ended.reason())
        self.state.retries.failed(LISTER)
        self.events.record("lister_failed", path=self.shown, reason=ended.reason())
        if self.context.once and self.state.retries.failures(LISTER) >= LOOK_TRIES_ONCE:
            raise UnavailableError(
                f"the source folder {self.shown} cannot be read ({ended.reason()}); is its mount alive?"
            )

    # Requests

    def released(self, path: str, unneeded: Unneeded) -> Change:
        return refused(f"{path}: the source is a folder, which is read in place and never written")

    def fetched_again(self, path: str, sha256: str | None, by: str) -> Change:
        if path not in self.watched:
            return refused(f"{path} is not in {self.shown}; put it there")
        receipt = self.state.receipts.get(path)
        return Change(answer={"receipt": "disputed"}) if receipt is None else looked_at_again(receipt, by)

    # Status

    def counts(self) -> dict[str, int]:
        counts, disputed = self.state.work.counts, self.state.paths["disputed"]
        hashing = len(self.state.transfers.keys() - disputed)
        settles = len(self._settling(time.monotonic()).keys() - disputed)
        waiting = max(0, counts["waiting"] - hashing - settles)
        return {**counts, "settling": settles, "waiting": waiting, "hashing": hashing}

    def status(self) -> dict[str, Any]:
        work, now = self.state.work, time.monotonic()
        return {
            **self.state.transfers.how_far(work.bytes, work.bytes_left, now),
            "waits": self._waits(now),
            "hashed_bytes": self.state.transfers.durable,
            "polling": self.polling,
            "watched": not self.polling and not self.trouble,
        }

    def _waits(self, now: float) -> str:
        """Returns the text of the wait for hashing: an empty source, or files that settle."""
        due = self._settling(now).values()
        was_settling, self.is_settling = self.is_settling, False
        if self.trouble or len(self.state.work.pending) > len(due):
            return ""
        if not due:
            return self.state.pauses.reason("listing")
        settle = format_duration(self.pipeline.stage.settle)
        files = f"{len(due):,} file{'s settle' if len(due) != 1 else ' settles'} (stage.settle: {settle})"
        text = f"{files}, {format_duration(min(due) - now)} left until the first is read"
        self.is_settling = True
        if not was_settling:
            self.context.log.info("files_settle", message=text)
        return text

    def next_due(self, now: float) -> float:
        """Returns when a look, a settled file or a retry is due; only the look while no slot is free."""
        look = max(self.look_due, self.state.retries.not_before.get(LISTER, 0.0))
        due = now + self.look_every_s if self.is_looking else look
        if len(self.state.transfers) >= self.pipeline.download.files_at_once:
            return due
        return min(due, self.state.next_retry(now))

    # End of --once

    def is_drained(self) -> bool:
        """Also requires that a last look found no changes."""
        return super().is_drained() and self.is_confirmed

    def keep_listing(self) -> None:
        if not self.trouble:  # an unreachable folder changes no state
            super().keep_listing()

    def summary(self) -> tuple[str, int]:
        counts, only = self.state.work.counts, self.state.only
        text = f"{counts['verified']} files hashed"
        if left := [path for path in self.state.work.pending if only is None or path in only]:
            text += f", {len(left)} left: they kept changing or could not be read"
        disputed = self.state.paths["disputed"] - self.state.work.pending.keys()
        if rotten := [path for path in disputed if path in self.state.work.selected]:
            text += f", {len(rotten)} rotten: {some(rotten)}; stoker audit says what to do"
        return text, 1 if rotten else 0
