"""Decides which fetched files the stage-shard loop no longer needs, and which it misses; pure.

A fetched file leaves the landing once its shard set replaces it; it is fetched again when the set was lost.
Only the download watchdog touches the landing; it reads the demand.
"""

from __future__ import annotations

from collections.abc import Collection

from stoker.corpus.records.demand import Demand, Unneeded
from stoker.corpus.records.receipts import Receipt, ReceiptState
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.state import Situation

MOST_UNNEEDED = 1000
_REMOVED: tuple[ReceiptState, ...] = ("releasing", "released")
_ON_ITS_WAY: tuple[ReceiptState, ...] = ("verified", "unproven", "disputed")


def may_be_demanded(source: Source | None, receipt: Receipt | None) -> bool:
    """Whether a path may be in the demand, now or later, while its two records stay as they are."""
    if source is None or receipt is None or not source.has_file:
        return False
    if receipt.usable:
        return source.state in ("released", "duplicate") and source.sha256 == receipt.sha256
    return receipt.state in (*_REMOVED, "disputed") and source.state in ("seen", "duplicate")


def demand_of(situation: Situation, paths: Collection[str], *, most_missed: int) -> Demand:
    """Returns the demand for these paths: those that the tokenizer or a run waits for come first.

    Of each content one file is fetched.
    """
    sources, receipts = situation.sources, situation.receipts
    unneeded: dict[str, Unneeded] = {}
    missed: dict[str, str] = {}
    coming = {sources[path].sha256 for path in paths if receipts[path].state == "disputed"}
    first = situation.wanted | situation.urgent
    for path in sorted(paths, key=lambda path: (path not in first, path)):
        source, receipt = sources[path], receipts[path]
        if path in situation.busy or not may_be_demanded(source, receipt):
            continue
        if receipt.usable:
            owner = _owner_of_safe_set(situation, source) if len(unneeded) < MOST_UNNEEDED else None
            if owner is not None:
                unneeded[path] = Unneeded(source.sha256, owner)
        elif receipt.state in _REMOVED and source.sha256 not in coming and _is_missed(situation, source):
            if len(coming) < most_missed:
                missed[path] = receipt.sha256
            coming.add(source.sha256)
    return Demand(unneeded, missed)


def _owner_of_safe_set(situation: Situation, source: Source) -> str | None:
    """Returns the path whose released set makes the source's file unneeded.

    A quarantined source's file stays, as evidence for a check of the verdict.
    """
    catalog = situation.sources
    if situation.limits.release == "never" or source.path in situation.convicted:
        return None
    same = [source.path] if source.state == "released" else catalog.with_content(source.sha256)
    safe = (path for path in same if catalog[path].state == "released")
    return next((path for path in safe if path not in situation.convicted), None)


def _is_missed(situation: Situation, source: Source) -> bool:
    """Whether the content has no shard set, and no file to build it from without another fetch."""
    path, catalog = source.path, situation.sources
    if situation.uncertain or path in situation.beyond or path in situation.shelved:
        return False
    if situation.key_of is None and path not in situation.wanted:
        return False  # its set may exist: that shows once the pin gives the names of sets
    if path in situation.recallable or situation.is_published(source):
        return False
    others = [catalog[other] for other in catalog.with_content(source.sha256) if other != path]
    if catalog.owner(source.sha256) is not None or any(_comes(situation, other) for other in others):
        return False
    if source.state == "seen":
        return True
    return all(other.state == "duplicate" or other.never_came for other in others)


def _comes(situation: Situation, other: Source) -> bool:
    """Whether the content's set will be built from this other file."""
    if other.state in ("staged", "building"):
        return True
    receipt = situation.receipts.get(other.path)
    here = receipt is not None and receipt.state in _ON_ITS_WAY and receipt.sha256 == other.sha256
    return here and other.state in ("seen", "duplicate") and other.path not in situation.beyond
