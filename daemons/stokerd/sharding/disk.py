"""The hot and the warm disk, as their listers last saw them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stoker.corpus.records.sources import Source
from stoker.observe.ledger import Disk as DiskSize
from stoker.observe.ledger import Place

ANSWERS_WITHIN_S = 15.0
LOOK_EVERY_S, MEASURE_EVERY_S = 30.0, 5.0


class Disk:
    """State of one disk: `published` is the first 16 digits of the key of each set on it, `size` its last
    measure, `is_measured` whether that measure is newer than every job that ended."""

    def __init__(self, place: Place, root: Path) -> None:
        self.place, self.root = place, root
        self.lister, self.sweeper = f"/{place}-lister", f"/{place}-sweep"  # never a source's path
        self.published: set[str] = set()
        self.size: DiskSize | None = None
        self.mark: Mapping[str, Any] = {}  # the owner record by which workers recognize this disk
        self.is_writable = True
        self.is_measured = self.is_owned = self.is_agreed = False
        self.why = ""  # the lister's reason why the disk is missing
        self.fits = False  # whether the disk is large enough for the configuration
        self.building_bytes: dict[str, int] = {}  # hot: built so far, by the first digits of the key
        self.partial: Mapping[str, int] = {}  # hot: bytes of unfinished copies, by file name
        self.gone: frozenset[str] = frozenset()  # warm: evicted sets that the last look did not find
        self.litter: dict[str, str | None] = {}  # paths to remove, each with its source's path if known
        self._born = time.monotonic()
        self._look_due = self._measure_due = 0.0
        self._asked_at: float | None = None  # when the unanswered look was requested
        self._silent_since: float | None = None
        self._number = self._needs = 0  # of the last measure requested, and of the first that counts
        self._believed: Mapping[str, Source] = {}  # the records as they were when the look began
        self._published_before: frozenset[str] = frozenset()

    # Looking and measuring

    def look_soon(self) -> None:
        self._look_due = 0.0

    def measure_soon(self) -> None:
        """Discards the last measure: a job that ended took or freed space."""
        self.is_measured = False
        self._needs = self._number + 1
        self._measure_due = 0.0

    def question(self, sources: Mapping[str, Source]) -> Mapping[str, Any] | None:
        """Returns the next request for the lister, None while none is due."""
        now = time.monotonic()
        if not self.is_owned:
            return None
        if self._asked_at is None and now >= self._look_due:
            self._asked_at, self._look_due = now, now + LOOK_EVERY_S
            self._believed, self._published_before = dict(sources), frozenset(self.published)
            return self._ask("look", now)
        return self._ask("measure", now) if now >= self._measure_due else None

    def _ask(self, what: str, now: float) -> Mapping[str, Any]:
        self._number += 1
        self._silent_since = self._silent_since or now
        self._measure_due = now + MEASURE_EVERY_S
        return {what: self._number}

    def untouched(self, sources: Mapping[str, Source], busy: Mapping[str, str]) -> dict[str, Source]:
        """Returns the records unchanged since the look began: only these can be compared with it."""
        believed = self._believed
        return {p: one for p, one in sources.items() if believed.get(p) is one and p not in busy}

    def answered(self) -> None:
        """Records an answered look: the next look may start even if this answer cannot be recorded."""
        self._asked_at, self.why = None, ""

    def looked(self, published: Collection[str]) -> None:
        """Records which sets a look found; the first look sets `published`, later looks only shrink it."""
        self.published -= self._published_before - set(published)
        if not self.is_agreed:
            self.published = set(published)
        self._believed, self._published_before = {}, frozenset()  # free the memory: sources may be many
        self.is_agreed = True

    def measured(self, message: Mapping[str, Any]) -> None:
        if self.is_hanging:
            self.look_soon()  # the disk answers again
        self.size, self.is_writable = DiskSize(**message["disk"]), bool(message["writable"])
        self.mark = message["owner"]
        self.is_measured = message["number"] >= self._needs
        self._silent_since = None if message["number"] == self._number else time.monotonic()

    def lost(self, why: str) -> None:
        """Records that the lister ended; `why` is its reason why the disk is missing."""
        self.is_owned = self.is_measured = False
        self.size, self.why = None, why
        self._asked_at = self._silent_since = None

    # Removing leftovers

    def discard(self, *paths: str, of: str | None = None) -> None:
        """Queues these paths for removal from the disk; work on the source `of` waits until then."""
        self.litter.update(dict.fromkeys(paths, of))

    # Condition

    @property
    def measure(self) -> DiskSize | None:
        """The disk's size; None while no current measure exists or work on the disk is not allowed."""
        return self.size if self.is_measured and self.is_known else None

    @property
    def is_seen(self) -> bool:
        return self.is_owned and self.is_agreed and self.size is not None

    @property
    def is_known(self) -> bool:
        """Whether work on the disk is allowed: hot must be writable, warm must answer."""
        return self.is_seen and (self.is_writable if self.place == "hot" else not self.is_hanging)

    @property
    def is_hanging(self) -> bool:
        """Whether the lister's answer is overdue."""
        since = self._silent_since
        return since is not None and time.monotonic() > since + ANSWERS_WITHIN_S

    @property
    def is_undecided(self) -> bool:
        """Whether the lister's first report is neither made nor overdue, and the lister has not failed."""
        return not self.is_seen and not self.why and time.monotonic() - self._born < ANSWERS_WITHIN_S

    @property
    def trouble(self) -> str:
        """Why the disk is not fully usable; empty when it was seen and no answer is overdue."""
        if not self.is_seen or self.is_hanging:
            return self.why or f"waiting for the {self.place} directory {self.root} to answer"
        if self.is_writable:
            return ""
        words = f"the {self.place} directory {self.root} is mounted read-only; remount it writable"
        return words if self.place == "hot" else f"{words}: until then no shard set is copied there"


def marks(*disks: Disk | None) -> list[dict[str, Any]]:
    """Returns the owner records by which a worker recognizes these disks."""
    return [dict(disk.mark) for disk in disks if disk is not None and disk.mark]
