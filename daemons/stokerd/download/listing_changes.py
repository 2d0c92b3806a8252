"""What a listing of a remote source tells: another commit, files refused or gone, or why there is none."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from stoker.corpus.records.receipts import Receipt
from stoker.store.errors import ConfigError, UnavailableError
from stokerd.common.alerts import WARN_EVERY_S, Alerts
from stokerd.download.remote_lister import LISTER, REFUSED_EVERY_S, Listed, NotListed, RemoteLister
from stokerd.download.source_kind import Desktop

TRIES_ONCE = 8  # of listings that fail for a reason that may pass: a minute or two
VANISHED_SHOWN = 20
EX_CONFIG = 78


class ListingNews:
    """`trouble` says why the source cannot be listed now; empty while it can."""

    def __init__(self, tools: Desktop, lister: RemoteLister) -> None:
        self._context, self._events, self._book = tools.context, tools.context.events, tools.book
        self._patience, self._lister = tools.patience, lister
        self._told = Alerts(tools.context.events, WARN_EVERY_S)
        self._fields: dict[str, Any] = {}  # of the event for the trouble
        self._retry_at = 0.0
        self._revision = lister.pinned
        self.trouble = ""
        self.refused_in_all = 0

    def take(self, found: Listed | NotListed) -> Listed | None:
        """Tell what is new; the listing if there is one to go by. Errors end --once."""
        if isinstance(found, NotListed):
            self._not_listed(found)
            return None
        if not found.files:
            self._nothing(found)
            return None
        self.trouble = ""
        self._told.clear("source_unavailable", tell="source_available", path=self._lister.shown)
        before, self._revision = self._revision, found.revision
        if before is None:
            self._events.record("source_pinned", source=self._lister.shown, revision=found.revision)
        elif before != found.revision:
            self._events.record(
                "source_moved", source=self._lister.shown, revision=found.revision, before=before
            )
        self.refused_in_all = found.refused_in_all
        for path, reason in found.refused:
            self._book.tell_once("source_refused", path, reason)
        return found

    def _not_listed(self, found: NotListed) -> None:
        self.trouble = f"the source cannot be listed: {found.reason}"
        if self._context.once and (found.final or self._patience.failures(LISTER) >= TRIES_ONCE):
            raise (ConfigError if found.code == EX_CONFIG else UnavailableError)(found.reason)
        self._unavailable(found.kind, found.reason, found.wait_s)

    def _nothing(self, found: Listed) -> None:
        reason = (
            f"{self._lister.shown} holds no file that is meant at {found.revision[:12]}; correct "
            "dataset.source.include and exclude"
        )
        self.trouble = reason
        if self._context.once:
            raise UnavailableError(reason)
        self._lister.forget(REFUSED_EVERY_S)
        self._unavailable("empty", reason, REFUSED_EVERY_S)

    def _unavailable(self, kind: str, reason: str, wait_s: float) -> None:
        self._fields, self._retry_at = {"kind": kind, "reason": reason}, time.monotonic() + wait_s
        self.remind()

    def remind(self) -> None:
        """Say again each minute that the source cannot be listed."""
        if self.trouble:
            left_s = max(0.0, self._retry_at - time.monotonic())
            self._told.raise_("source_unavailable", **self._fields, retry_in_s=round(left_s, 1))

    def tell_vanished(self, listed: Collection[str], receipts: Mapping[str, Receipt]) -> None:
        """Name files that are here but not listed any more; of many only some."""
        self._book.came_back("source_vanished", listed.__contains__)
        gone = [path for path in receipts if path not in listed and receipts[path].usable]
        for path in gone[:VANISHED_SHOWN]:
            self._book.tell_once("source_vanished", path, "it is not listed any more; its receipt is kept")
        if (more := len(gone) - VANISHED_SHOWN) > 0:
            self._book.tell_once("source_vanished", "", f"{more} more files are not listed any more")
