"""The download watchdog's state: the facts that its decisions are made from."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

from stoker.corpus.fetch.decide import FetchMessage
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import COUNTED, TRANSIENT
from stoker.corpus.records.receipts import Demand, Receipt, ReceiptState, demand_reader
from stoker.corpus.records.record_dir import each_record
from stoker.corpus.records.worklist import L, Rules, Worklist
from stoker.corpus.source.folder import FileSeen
from stoker.kit.daemon import DaemonContext
from stoker.kit.events import Alerts, Events
from stoker.kit.loop import Retries
from stoker.observe.progress import Rate

TRY_CLASSES = (*TRANSIENT, *COUNTED, "other")
LISTER = "/lister"  # no source's path begins with a slash
FILE_OVER_S, ALL_OVER_S = 30.0, 60.0  # the rates of a file and of all files are over this time

# The source cannot be listed; it refuses its files; the landing cannot be used; its disk fails or is full;
# a file cannot be removed; every file waits for its next try.
Subject = Literal["listing", "access", "landing", "disk", "removal", "server"]


@dataclass(frozen=True)
class Work:
    """What a worker works for: a dataset, and the file of a folder that it hashes."""

    dataset: str
    file: FileSeen | None = None


@dataclass(frozen=True)
class Pause:
    """A reason to wait; `until` is the next try in monotonic seconds."""

    reason: str
    until: float


class Pauses:
    """The present pauses by subject; the event of a lasting pause is repeated every five minutes."""

    def __init__(self, events: Events) -> None:
        self._events, self._alerts = events, Alerts(events)
        self._all: dict[Subject, Pause] = {}
        self.tries = Retries()

    def begin(
        self,
        subject: Subject,
        alert: str,
        reason: str,
        *,
        until: float | None = None,
        about: str = "",
        **fields: Any,
    ) -> None:
        """Starts or extends a pause; without `until` each try waits longer.

        `alert` is its event, and `about` distinguishes alerts of one event.
        """
        if until is None:
            if self.tries.allows(subject):  # many files that fail together count as one failure
                self.tries.failed(subject)
            until = self.tries.not_before[subject]
        self._all[subject] = Pause(reason, until)
        if math.isfinite(until):
            fields["retry_in_s"] = round(max(0.0, until - time.monotonic()), 1)
        self._alerts.raise_(alert, about, reason=reason, **fields)

    def end(self, subject: Subject, event: str = "", **fields: Any) -> None:
        """Ends a pause, if there is one, and records its end event."""
        self.tries.succeeded(subject)
        if self._all.pop(subject, None) is not None and event:
            self._events.record(event, **fields)

    def reason(self, *subjects: Subject) -> str:
        """Returns the reason of the first of these subjects that is paused; empty without one."""
        return next((self._all[each].reason for each in subjects if each in self._all), "")

    def until(self, *subjects: Subject) -> float:
        """Returns when the last of these pauses ends or is tried again, monotonic seconds."""
        return max((self._all[each].until for each in subjects if each in self._all), default=0.0)


@dataclass
class Transfer:
    """One file with a worker: `bytes` of it are done, `received` came over the network so far.

    `wish` is the request, None for a file of a folder. `in_hand`: a thread works on it. `why`: the failure of
    the last try while it waits for the next one at `due_at` (monotonic seconds), else empty.
    """

    path: str
    size: int | None
    wish: RemoteFile | None
    bytes: int = 0
    received: int = 0
    in_hand: bool = False
    why: str = ""
    due_at: float = 0.0
    pace: Rate = field(default_factory=lambda: Rate(FILE_OVER_S))


class Transfers(dict[str, Transfer]):
    """The transfers in progress by path; the totals continue across workers."""

    def __init__(self) -> None:
        super().__init__()
        self.durable = self.received = 0  # bytes since the start
        self._pace = Rate(ALL_OVER_S)

    def add(self, path: str, size: int | None, wish: RemoteFile | None) -> None:
        self[path] = Transfer(path, size, wish)

    def hear(self, said: FetchMessage, now: float) -> None:
        """Updates a transfer by the fetch worker's message."""
        file = self.get(said.path)
        if file is None:
            return
        match said.kind:
            case "start":
                file.bytes = said.offset
            case "progress":
                self.moved(file.path, said.bytes, said.received)
            case "done":
                self.moved(file.path, said.size if said.fetched else file.bytes, said.fetched)
        file.in_hand = said.kind != "retry"
        file.why, file.due_at = said.reason if said.kind == "retry" else "", now + said.wait_s
        if said.kind in ("start", "progress"):
            file.pace.note(file.bytes, now)

    def moved(self, path: str, done: int, received: int) -> None:
        """Records a file's done bytes, and how many of them came over the network."""
        file = self[path]
        self.durable += max(0, done - file.bytes)
        self.received += max(0, received - file.received)
        file.bytes, file.received, file.in_hand = done, received, True

    def to_come_bytes(self) -> int:
        """Returns the bytes that files in work still need, as far as their sizes are known."""
        return sum(max(0, (file.size or 0) - file.bytes) for file in self.values() if file.in_hand)

    def in_hand(self) -> int:
        """Returns the number of files in work."""
        return sum(1 for file in self.values() if file.in_hand)

    def how_far(self, whole: int, left: int, now: float) -> Mapping[str, Any]:
        """Returns the progress for the status: done bytes of `whole`, rate over a minute, time left.

        `left` are the bytes still missing, including those of files in progress.
        """
        self._pace.note(self.durable, now)
        left = max(0, left - sum(file.bytes for file in self.values()))
        left_s = self._pace.left_s(left) if self else None
        return {
            "bytes_of": whole,
            "bytes_done": max(0, whole - left),
            "rate_bytes_per_second": round(self._pace.per_second) if self else 0,
            "eta_s": None if left_s is None or not left else round(left_s),
        }

    def shown(self, most: int) -> list[dict[str, Any]]:
        """Returns at most so many files in work for the status."""
        return [
            {
                "path": path,
                "bytes": file.bytes,
                "size": file.size,
                "bytes_per_second": round(file.pace.per_second),
            }
            for path, file in self.items()
            if file.in_hand
        ][:most]


class State(Generic[L]):
    """The watchdog's facts: `receipts` by path, `paths` by receipt state, `verified_bytes` of verified files.

    `work` are the files listed, selected and pending, `transfers` those with a worker, `removing` the paths
    it is to unlink. `only` are the paths to work on, None for all; `given_up` those that --once does not try
    again. `changes` counts the receipts written, `failed_tries` attempts by cause, `counted` other events;
    `progress_at` is when a file was last read from (time.time).
    """

    def __init__(self, context: DaemonContext, rules: Rules[L], only: Collection[str] | None) -> None:
        """Reads the receipts; sets a damaged receipt aside, and its file is hashed again."""
        self.receipts: dict[str, Receipt] = {}
        self.paths: dict[ReceiptState, set[str]] = defaultdict(set)
        self.verified_bytes = self.changes = 0
        self.work = Worklist(rules, self.receipts)
        self.transfers = Transfers()
        self.removing: set[str] = set()
        self.retries = Retries()
        self.pauses = Pauses(context.events)
        self.only = only
        self.given_up: set[str] = set()
        self.counted = Counter(refetched_bytes=0, mismatches=0, restarts=0)
        self.failed_tries = Counter(dict.fromkeys(TRY_CLASSES, 0))
        self.progress_at = 0.0
        directory, dataset = context.layout.receipts, context.pipeline.dataset.name
        self.demand = demand_reader(context.layout, dataset)
        self.reconciled = (Demand(), -1, False)  # the last demand, `changes` and `seen` compared
        for _, receipt in each_record(directory, dataset, Receipt.from_record, context.set_aside):
            self._enter(receipt)

    def take(self, receipt: Receipt) -> None:
        """Adopts a receipt that is durable now."""
        self._enter(receipt)
        self.changes += 1
        self.work.note(receipt.path)

    def _enter(self, receipt: Receipt) -> None:
        if (before := self.receipts.get(receipt.path)) is not None:
            self.paths[before.state].discard(before.path)
            self.verified_bytes -= before.size if before.state == "verified" else 0
        self.receipts[receipt.path] = receipt
        self.paths[receipt.state].add(receipt.path)
        self.verified_bytes += receipt.size if receipt.state == "verified" else 0

    def try_again(self, path: str) -> None:
        """Forgets a file's failures, so that it is tried again."""
        self.retries.succeeded(path)
        self.given_up.discard(path)

    def is_meant(self, path: str) -> bool:
        """Whether the watchdog works on the path at all."""
        return (self.only is None or path in self.only) and path not in self.given_up

    def may_begin(self, path: str, now: float) -> bool:
        """Whether a pending file may be begun now."""
        is_free = path not in self.transfers and path not in self.removing
        return is_free and self.is_meant(path) and now >= self.retries.not_before.get(path, now)

    def next_retry(self, now: float) -> float:
        """Returns the next retry after now of a pending file or a worker, monotonic seconds."""
        tried = self.retries.not_before.items()
        pending = self.work.pending
        due = (due for path, due in tried if due > now and (path in pending or path.startswith("/")))
        return min(due, default=math.inf)
