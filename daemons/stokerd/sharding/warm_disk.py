"""The warm disk in the stage-shard loop's hands: everything else goes on while it is away."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stoker.corpus.records.index import KeySet
from stoker.corpus.staging.disk_contents import WarmSeen
from stoker.corpus.staging.reconcile import reconcile_warm
from stoker.kit.events import Events
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job
from stoker.observe.ledger import Disk
from stoker.store.layout import WarmLayout
from stokerd.sharding.disks import ANSWERS_WITHIN_S, Yard
from stokerd.sharding.source_store import SourceBook

NAMES = ("published", "temporaries", "trash")


class WarmYard(Yard):
    """Warm: what was published there are copies of proven sets."""

    place = "warm"
    _gone: frozenset[str] = frozenset()  # evicted sets that the last look did not find either

    def _expected(self) -> int:
        return sum(1 for source in self._book.sources.values() if source.on_warm)

    def _agree(self, message: Mapping[str, Any]) -> None:
        seen = WarmSeen(**{name: tuple(message[name]) for name in NAMES})
        found = reconcile_warm(WarmLayout(self._root), seen, self._untouched(), gone_before=self._gone)
        for path in found.copy_again:
            self.copy_lost(path, "its copy is not on warm")
        for path in found.renew:
            reason = "its shard set was on warm only, and is gone from there"
            self._book.renew(self._book.sources[path], reason, level="error")
        self._gone = found.gone
        self.published.drop(self._published_before - set(seen.published))
        if not self._agreed:
            self.published = KeySet(seen.published)
            self.discard(*found.remove)
        self._told.over("warm_unavailable", tell="warm_available", path=str(self._root))

    def hear(self, message: Mapping[str, Any]) -> None:
        """As any disk's; one that is mounted read-only is said."""
        super().hear(message)
        if message["kind"] == "measured" and self.writable:
            self._told.over("warm_read_only")
        elif message["kind"] == "measured":
            self._told.trouble("warm_read_only", reason=f"{self.trouble}; remount it writable")

    def took(self, key16: str) -> None:
        """A proven copy of this set lies there now."""
        self.published.add(key16)

    def copy_lost(self, path: str, reason: str) -> None:
        """The copy of a set that is on hot is not there or not right: it is made again."""
        source = self._book.sources[path]
        self._book.write(source.moved("proven", on_warm=False, evicting=False))
        key = str(source.key)[:16]
        self._context.events.record(
            "warm_copy_lost", level="warning", path=path, key=key, reason=f"{reason}; it is copied again"
        )

    def _tell_unavailable(self, reason: str) -> None:
        advice = "what is on hot is used, copies wait; it is tried again for ever"
        self._told.trouble("warm_unavailable", path=str(self._root), reason=f"{reason}; {advice}")

    @property
    def known(self) -> bool:
        """Whether it answers; one that hangs is not waited for."""
        return super().known and not self.hanging

    @property
    def undecided(self) -> bool:
        """Whether it has not said yet what it holds, nor that it cannot."""
        silent = time.monotonic() - self._born < ANSWERS_WITHIN_S
        known = self._agreed and self.disk is not None
        return silent and not known and not self._patience.failures(self.lister)

    @property
    def trouble(self) -> str:
        """Why it is not all there; empty when it is."""
        if self.known and not self.writable:
            return f"the warm directory {self._root} is mounted read-only: no shard set is copied there"
        return super().trouble


def forget_copies(book: SourceBook, events: Events) -> None:
    """With no warm disk any more its copies are nobody's: sets that were there only are made again."""
    copied = [source for source in book.sources.values() if source.on_warm]
    for source in copied:
        if source.evicted:
            book.renew(source, "its shard set was on warm only, and no warm is configured now")
        else:
            book.write(source.moved("proven", on_warm=False, evicting=False))
    if copied:
        again = sum(source.evicted for source in copied)
        advice = f"{again} shard sets were there only and are built again; or set warm again"
        events.record("warm_forgotten", level="warning", sets=len(copied), message=advice)


class NoWarm:
    """The place of a warm disk where none is configured."""

    configured = known = undecided = writable = measured = False
    tidy = True
    trouble = ""
    lister = sweeper = "/none"
    published: frozenset[str] = frozenset()
    clearing: frozenset[str] = frozenset()
    disk: Disk | None = None
    mark: Mapping[str, Any] = {}

    def keep_owned(self) -> None:
        """There is nothing to own."""

    look_if_due = look_soon = measure_soon = sweep = keep_owned

    def waits_for_owner(self, since: float) -> bool:
        """Never."""
        return False

    def hear(self, message: Mapping[str, Any]) -> None:
        """Nobody says anything."""

    def ended(self, job: Job[Any], ended: WorkerExit) -> None:
        """Nothing ends."""

    def took(self, key16: str) -> None:
        """Nothing is copied."""

    def copy_lost(self, path: str, reason: str) -> None:
        """There are no copies."""
