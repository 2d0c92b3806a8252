"""What is known of the hot and the warm disk, through the lister that owns each."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stoker.corpus.records.sources import Source
from stoker.corpus.staging.disk_full import Place
from stoker.observe.ledger import Disk as DiskSize

ANSWERS_WITHIN_S = 15.0
ANSWERS_AT_ONCE_S = 1.0  # a wait as short as this is not shown
LOOK_EVERY_S, MEASURE_EVERY_S = 30.0, 5.0


class Disk:
    """One disk. `published` are the first 16 digits of the keys of the sets there, `size` as last measured;
    `is_measured` tells whether that measure came after all that ended so far."""

    def __init__(self, place: Place, root: Path) -> None:
        self.place, self.root = place, root
        self.lister, self.sweeper = f"/{place}-lister", f"/{place}-sweep"  # never a source's path
        self.published: set[str] = set()
        self.size: DiskSize | None = None
        self.mark: Mapping[str, Any] = {}  # by what workers know that it is this disk
        self.is_writable = True
        self.is_measured = self.is_owned = self.is_agreed = False
        self.why = ""  # the lister's word that the disk is not there
        self.fits = False  # whether the disk is large enough for the configuration
        self.building_bytes: dict[str, int] = {}  # hot: built so far, by the first digits of the key
        self.partial: Mapping[str, int] = {}  # hot: copied so far of files on their way, by name
        self.gone: frozenset[str] = frozenset()  # warm: evicted sets that the last look did not find
        self.litter: dict[str, str | None] = {}  # what is to be removed, and the path of its source if known
        self._born = self._heard_at = time.monotonic()
        self._look_due = self._measure_due = 0.0
        self._asked_at: float | None = None  # when the look that is not answered yet was asked for
        self._silent_since: float | None = None
        self._number = self._needs = 0  # of the last measure asked for, and of the first that counts
        self._believed: Mapping[str, Source] = {}  # the records as they were when the look began
        self._published_before: frozenset[str] = frozenset()

    # Looking and measuring

    def look_soon(self) -> None:
        """Have a look at the next occasion."""
        self._look_due = 0.0

    def measure_soon(self) -> None:
        """Forget the last measure: something just ended that took or gave room."""
        self.is_measured = False
        self._needs = self._number + 1
        self._measure_due = 0.0

    def question(self, sources: Mapping[str, Source]) -> Mapping[str, Any] | None:
        """What to ask the lister now; None while nothing is due."""
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

    def owned(self) -> None:
        """The lister holds the owner lock."""
        self.is_owned, self._look_due = True, 0.0
        self._asked_at = self._silent_since = None

    def heard(self) -> None:
        """The lister said something."""
        self._heard_at = time.monotonic()

    def untouched(self, sources: Mapping[str, Source], busy: Mapping[str, str]) -> dict[str, Source]:
        """The records that are as they were when the look began: only they can be held against it."""
        believed = self._believed
        return {p: one for p, one in sources.items() if believed.get(p) is one and p not in busy}

    def answered(self) -> None:
        """A look was answered; the next may be asked for even if this one cannot be recorded."""
        self._asked_at, self.why = None, ""

    def looked(self, published: Collection[str]) -> None:
        """The records agree with a look; the first tells all that lies there, later ones what is gone."""
        self.published -= self._published_before - set(published)
        if not self.is_agreed:
            self.published = set(published)
        self._believed, self._published_before = {}, frozenset()  # with many sources they take room
        self.is_agreed = True

    def measured(self, message: Mapping[str, Any]) -> None:
        """Take a measure."""
        if self.is_hanging:
            self.look_soon()  # it answers again
        self.size, self.is_writable = DiskSize(**message["disk"]), bool(message["writable"])
        self.mark = message["owner"]
        self.is_measured = message["number"] >= self._needs
        self._silent_since = None if message["number"] == self._number else time.monotonic()

    def lost(self, why: str) -> None:
        """The lister ended; `why` is its word that the disk is not there."""
        self.is_owned = self.is_measured = False
        self.size, self.why = None, why
        self._asked_at = self._silent_since = None

    # Keeping tidy

    def discard(self, *paths: str, of: str | None = None) -> None:
        """Have these removed from the disk at the next occasion; `of` is the source that waits for it."""
        self.litter.update(dict.fromkeys(paths, of))

    # How it is

    @property
    def measure(self) -> DiskSize | None:
        """The disk's size, None while it is not known as of now or may not be worked on."""
        return self.size if self.is_measured and self.is_known else None

    @property
    def is_seen(self) -> bool:
        return self.is_owned and self.is_agreed and self.size is not None

    @property
    def is_known(self) -> bool:
        """Whether it may be worked on: hot while it is writable, warm while it answers."""
        return self.is_seen and (self.is_writable if self.place == "hot" else not self.is_hanging)

    @property
    def is_hanging(self) -> bool:
        """Whether an answer is overdue."""
        since = self._silent_since
        return since is not None and time.monotonic() > since + ANSWERS_WITHIN_S

    def is_undecided(self, failures: int) -> bool:
        """Whether it has not said yet what it holds, nor failed to."""
        is_young = time.monotonic() - self._born < ANSWERS_WITHIN_S
        return is_young and not (self.is_agreed and self.size is not None) and not failures

    @property
    def trouble(self) -> str:
        """Why it is not all there; empty when it was seen and answers, or was just asked."""
        if not self.is_writable and self.is_known | (self.place == "hot" and self.is_seen):
            if self.place == "hot":
                return f"the hot directory {self.root} is mounted read-only; remount it writable"
            return f"the warm directory {self.root} is mounted read-only: no shard set is copied there"
        if self.is_seen and not self.is_hanging:
            return ""
        if not self.why and time.monotonic() < self._heard_at + ANSWERS_AT_ONCE_S:
            return ""
        return self.why or f"waiting for the {self.place} directory {self.root} to answer"
