"""What was fetched, in the stage-shard loop's eyes: files to be given back, and files that are missed.

The landing is the download watchdog's. Each wish about it becomes a request, filed once, also over restarts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.corpus.records.receipts import Receipt
from stoker.corpus.schedule.landing import VERBS, Verb, Wish, bytes_to_release, may_wish, wishes
from stoker.corpus.schedule.state import Situation
from stoker.kit.daemon import DaemonContext
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.requests import file_request, filed_requests, read_outcome
from stokerd.sharding.source_store import SourceBook

AGAIN_S = 600.0  # after a refusal, or an answer that nothing followed
MOST_RELEASES = 64  # asked at once: what a restart of the watchdog finds to do
MOST_RELEASES_ONCE = 1000  # nobody comes back to ask for the rest
LEAST_FETCHES = 16  # asked at once, ahead of the builders as stage.queue_files is


@dataclass
class _Asked:
    """A request that is under way; `receipt` is its path's as it was then, None where that is to be seen."""

    verb: Verb
    sha256: str
    request: str
    receipt: Receipt | None
    since: float
    refused: bool = False


class LandingDesk:
    """Keeps what may be asked by path, and what is asked. A folder's files nobody removes or fetches."""

    def __init__(self, context: DaemonContext, book: SourceBook) -> None:
        pipeline = context.pipeline
        self._layout, self._events, self._book = context.layout, context.events, book
        self._fetched = pipeline.dataset.source.kind != "folder"
        self._most: Mapping[Verb, int] = {
            "release": MOST_RELEASES_ONCE if context.once else MOST_RELEASES,
            "fetch": max(LEAST_FETCHES, pipeline.stage.queue_files),
        }
        self._changed: set[str] = set()
        self._open: set[str] = set()  # what may have a wish
        self._asked: dict[str, _Asked] = {}
        self._told_refused: set[tuple[str, str]] = set()
        self._bytes = context.metrics.gauge(
            "landing_unneeded_bytes", "Fetched files that nothing needs any more and that lie there still."
        )
        self._count = context.metrics.counter(
            "landing_requests_total", "What was asked of the download watchdog.", ("verb",)
        )
        for verb in VERBS:
            self._count.labels(verb)
        if self._fetched:
            self._take_up()

    def _take_up(self) -> None:
        """What was asked before a restart is not asked again."""
        now = time.monotonic()
        for request in filed_requests(self._layout, DOWNLOAD_WATCHDOG):
            path, sha256 = request.args.get("path"), request.args.get("sha256")
            verb = next((one for one in VERBS if one == request.verb), None)
            if verb is not None and isinstance(path, str) and isinstance(sha256, str):
                self._asked[path] = _Asked(verb, sha256, request.id, None, now)

    def note(self, paths: Iterable[str]) -> None:
        """The source records or receipts of these paths changed."""
        if self._fetched:
            self._changed.update(paths)

    def act(self, look: Callable[[], Situation]) -> None:
        """File what is to be asked now; `look` tells how everything stands."""
        if not (self._changed or self._open or self._asked):
            return
        situation = look()
        receipts = situation.receipts
        self._follow(receipts)
        for path in self._changed:
            if may_wish(self._book.sources.get(path), receipts.get(path)):
                self._open.add(path)
            else:
                self._open.discard(path)
        self._changed.clear()
        under_way = {path: asked.verb for path, asked in self._asked.items() if not asked.refused}
        askable = self._open - self._asked.keys()
        for wish in list(wishes(situation, askable, under_way=under_way, most=self._most)):
            self._file(wish, receipts[wish.path])

    def show(self, receipts: Mapping[str, Receipt]) -> dict[str, Any]:
        """The status' part."""
        if not self._fetched:
            return {}
        waiting = bytes_to_release(self._open, self._book.sources, receipts)
        self._bytes.set(waiting)
        asked = {verb: sum(1 for one in self._asked.values() if one.verb == verb) for verb in VERBS}
        return {"landing": {"unneeded_bytes": waiting, "asked": asked}}

    @property
    def due(self) -> float:
        """When something is to be asked again, monotonic seconds."""
        return min((asked.since + AGAIN_S for asked in self._asked.values()), default=math.inf)

    def _follow(self, receipts: Mapping[str, Receipt]) -> None:
        """Forget what was asked once it came true, or may be asked again."""
        now = time.monotonic()
        for path, asked in list(self._asked.items()):
            receipt = receipts.get(path)
            if receipt is not asked.receipt and not _goes_on(asked, receipt):
                del self._asked[path]
                continue
            asked.receipt = receipt
            if not asked.refused:
                self._hear(path, asked, now)
            if now >= asked.since + AGAIN_S:
                if not (self._layout.requests(DOWNLOAD_WATCHDOG) / f"{asked.request}.json").exists():
                    del self._asked[path]
                else:
                    asked.since = now  # the watchdog is down: it is asked already

    def _hear(self, path: str, asked: _Asked, now: float) -> None:
        outcome = read_outcome(self._layout, asked.request)
        if outcome is None or "refused" not in outcome:
            return
        asked.refused, asked.since = True, now
        if (asked.verb, path) not in self._told_refused:
            self._told_refused.add((asked.verb, path))
            self._events.record(
                f"landing_{asked.verb}_refused", level="warning", path=path, reason=str(outcome["refused"])
            )

    def _file(self, wish: Wish, receipt: Receipt) -> None:
        args = {"path": wish.path, "sha256": wish.sha256}
        if wish.verb == "release":
            args["owner"] = wish.owner
        else:
            reason = "its shard set is to be made again, and its file was removed after the last time"
            self._events.record("source_wanted_again", path=wish.path, reason=reason)
        request = file_request(self._layout, DOWNLOAD_WATCHDOG, wish.verb, args)
        self._count.labels(wish.verb).inc()
        self._asked[wish.path] = _Asked(wish.verb, wish.sha256, request, receipt, time.monotonic())


def _goes_on(asked: _Asked, receipt: Receipt | None) -> bool:
    """Whether what was asked is on its way still, by what the receipt says now."""
    if receipt is None:
        return False
    if asked.verb == "fetch":
        return receipt.state in ("disputed", "releasing", "released")
    return asked.receipt is None and receipt.usable and receipt.sha256 == asked.sha256
