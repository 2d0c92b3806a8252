"""What the download watchdog knows: the facts that its decisions are made from."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from stoker.corpus.fetch.messages import Transfers
from stoker.corpus.http.retry_rules import COUNTED, TRANSIENT
from stoker.corpus.records.receipts import Receipt, ReceiptState
from stoker.corpus.records.worklist import Listed, Rules, Worklist
from stoker.kit.backoff import Retries
from stoker.kit.events import Events
from stokerd.common.alerts import REPEAT_S, Alerts

LISTER = "/lister"  # no source's path begins with a slash

# The source cannot be listed; it refuses its files; the landing cannot be used; its disk fails or is full;
# a file cannot be removed; every file waits for its next try.
Subject = Literal["listing", "access", "landing", "disk", "removal", "server"]


@dataclass(frozen=True)
class Pause:
    """`alert` is the event that was recorded, `about` tells apart alerts of one event that are recorded each;
    `until`, the next try, is in monotonic seconds."""

    alert: str
    about: str
    reason: str
    until: float


class Pauses:
    """The pauses of now, by subject; the event of one that lasts is repeated every five minutes."""

    def __init__(self, events: Events) -> None:
        self._events, self._alerts = events, Alerts(events, REPEAT_S)
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
        level: str = "warning",
        **fields: Any,
    ) -> None:
        """Wait for that reason, from now on or still; without `until` for longer after each try."""
        if until is None:
            if self.tries.allows(subject):  # of many files that fail together one is counted
                self.tries.failed(subject)
            until = self.tries.not_before[subject]
        self._all[subject] = Pause(alert, about, reason, until)
        if math.isfinite(until):
            fields["retry_in_s"] = round(max(0.0, until - time.monotonic()), 1)
        repeat = subject != "server"
        self._alerts.raise_(alert, about, level=level, repeat=repeat, reason=reason, **fields)

    def end(self, subject: Subject, event: str = "", **fields: Any) -> None:
        """Record the event that tells of the end, if there was such a pause."""
        self.tries.succeeded(subject)
        if (pause := self._all.pop(subject, None)) is not None:
            self._alerts.clear(pause.alert, pause.about)
            if event:
                self._events.record(event, **fields)

    def hurry(self, subject: Subject) -> None:
        """Try again now."""
        if subject in self._all:
            self._all[subject] = replace(self._all[subject], until=0.0)

    def reason(self, *subjects: Subject) -> str:
        """Why the first of these that is paused is; empty where none is."""
        return next((self._all[each].reason for each in subjects if each in self._all), "")

    def until(self, *subjects: Subject) -> float:
        """When the last of these ends by itself, or is tried again, monotonic seconds."""
        return max((self._all[each].until for each in subjects if each in self._all), default=0.0)


L = TypeVar("L", bound=Listed)


class State(Generic[L]):
    """`receipts` by path and `paths` by receipt state; `verified_bytes` are those of the verified files.

    `work` are the files listed, selected and pending, `transfers` those with a worker, `removing` the paths
    that it is to unlink. `only` are the paths to work on, None for all; `given_up` those that --once does not
    try again. `changes` counts the receipts written, `failed_tries` attempts by cause, `counted` others;
    `progress_at` is when a file was last read from (time.time).
    """

    def __init__(
        self,
        rules: Rules[L],
        receipts: Iterable[tuple[str, Receipt]],
        pauses: Pauses,
        only: Collection[str] | None,
    ) -> None:
        self.receipts: dict[str, Receipt] = {}
        self.paths: dict[ReceiptState, set[str]] = defaultdict(set)
        self.verified_bytes = self.changes = 0
        self.work = Worklist(rules, self.receipts)
        self.transfers = Transfers()
        self.removing: set[str] = set()
        self.retries = Retries()
        self.pauses = pauses
        self.only = only
        self.given_up: set[str] = set()
        self.counted = Counter(refetched_bytes=0, mismatches=0, restarts=0)
        self.failed_tries = Counter(dict.fromkeys((*TRANSIENT, *COUNTED), 0))
        self.progress_at = 0.0
        for _, receipt in receipts:
            self._enter(receipt)

    def take(self, receipt: Receipt) -> None:
        """Go by a receipt that is durable now."""
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
        """Forget how often a file failed."""
        self.retries.succeeded(path)
        self.given_up.discard(path)

    def is_meant(self, path: str) -> bool:
        """Whether to do something about the path at all."""
        return (self.only is None or path in self.only) and path not in self.given_up

    def may_begin(self, path: str, now: float) -> bool:
        """Whether a pending file may be begun now."""
        is_free = path not in self.transfers and path not in self.removing
        return is_free and self.is_meant(path) and now >= self.retries.not_before.get(path, now)

    def is_left(self) -> bool:
        """Whether something is to be done about a file that is not given up."""
        return any(map(self.is_meant, self.work.pending))

    def next_retry(self, now: float) -> float:
        """When, after now, a pending file or a worker of the daemon's own may be tried again, monotonic
        seconds."""
        tried = self.retries.not_before.items()
        pending = self.work.pending
        due = (due for path, due in tried if due > now and (path in pending or path.startswith("/")))
        return min(due, default=math.inf)
