"""The decisions of the stage-shard loop: one pure function from the situation to a tuple of actions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain, islice

from stoker.corpus.records.receipts import Demand, Receipt, ReceiptState, Unneeded
from stoker.corpus.records.sources import OPEN, PUBLISHED, Source, SourceState
from stoker.corpus.schedule.state import Action, Situation


def decide(situation: Situation, now: float) -> tuple[Action, ...]:
    """Returns the actions to take now, within the limits; none contradicts another.

    Work is claimed by content: of two paths with the same sha256 one is worked on; the other waits and
    becomes its duplicate once the set is proven.
    """
    renewals = tuple(stale(situation))
    if renewals:  # every other decision needs records of the current content
        return renewals
    if moves := decide_moves(situation, now):
        return moves  # a set that returns from warm gets its room before any new work begins
    return (
        *_duplicates(situation),
        *_lost_contents(situation),
        *situation.starts("quarantine", sorted(situation.convicted), now),
        *_proofs(situation, now),
        *situation.starts("stage", stageable(situation, now), now),
        *situation.starts("build", buildable(situation, now), now),
        *_releases(situation, now),
    )


def stale(situation: Situation) -> Iterator[Action]:
    """Yields actions for records that disagree with their receipt on the content or the fetch's fate."""
    catalog, receipts = situation.sources, situation.receipts
    for path in receipts if situation.differing is None else sorted(situation.differing):
        source, receipt = catalog.get(path), receipts.get(path)
        if receipt is None or path in situation.busy:
            continue
        if receipt.unobtainable:
            yield from _give_up(situation, source, receipt)
        elif not receipt.usable:
            continue
        elif source is None:
            if path not in situation.beyond:
                yield Action("restart", path)
        elif path in situation.unrecorded:
            continue  # its set is proven first, and then kept as a former content
        elif source.sha256 != receipt.sha256 or source.never_came:
            yield Action("replace" if source.state in PUBLISHED else "restart", path)


def differs(source: Source | None, receipt: Receipt | None) -> bool:
    """Whether a receipt and the record of its path disagree on the content or on the fate of its download."""
    if receipt is None:
        return False
    if source is None or source.sha256 != receipt.sha256:
        return True
    return source.state == "seen" if receipt.unobtainable else source.never_came


def _give_up(situation: Situation, source: Source | None, receipt: Receipt) -> Iterator[Action]:
    """Yields how to give up a file that was not fetched, or rotted, and whose content has no shard set."""
    path = receipt.path
    if path in situation.beyond:
        return
    if source is None:  # records of its content may show that its set exists
        yield Action("restart" if receipt.sha256 else "give_up", path)
    elif source.state == "seen" and not situation.uncertain and not situation.has_set(source):
        yield Action("give_up", path)


def _duplicates(situation: Situation) -> Iterator[Action]:
    """Yields open sources of a content that has a set, and duplicates of a content that has lost its set.

    The latter start over: the file that the set was built from may be gone or changed, while theirs is here.
    """
    catalog = situation.sources
    for path in chain.from_iterable(catalog.unsettled):
        source, receipt = catalog[path], situation.receipts.get(path)
        owner = catalog.owner(source.sha256)
        is_here = receipt is not None and receipt.usable and receipt.sha256 == source.sha256
        if path in situation.busy:
            continue
        if owner is not None and source.state in OPEN:
            yield Action("duplicate", path, owner)
        elif owner is None and source.state == "duplicate" and is_here:
            yield Action("restart", path)


def _lost_contents(situation: Situation) -> Iterator[Action]:
    """Yields former and imported contents whose set is nowhere and whose content no other file has."""
    catalog = situation.sources
    if situation.uncertain or situation.key_of is None:
        return
    for path in (*catalog.formers, *catalog.imported):
        source = catalog[path]
        found = path in situation.recallable or path in situation.busy or path in situation.convicted
        if source.state != "seen" or found or situation.is_published(source):
            continue
        others = (catalog[other] for other in catalog.with_content(source.sha256) if other != path)
        if not any(each.has_file and (each.state != "quarantined" or each.never_came) for each in others):
            yield Action("give_up_content", path)


def _proofs(situation: Situation, now: float) -> Iterator[Action]:
    """Yields proofs of the sets on hot without a record, and of the sets that were requested to be proven."""
    published = (path for path in situation.to_prove if situation.sources[path].state in PUBLISHED)
    asked = (path for path in sorted(published) if situation.is_published(situation.sources[path]))
    free = (path for path in (*situation.unrecorded, *asked) if situation.allows("prove", path, now))
    yield from situation.starts("prove", situation.unclaimed(free), now)


def stageable(situation: Situation, now: float) -> list[str]:
    """Returns the paths to stage next within workers and queue, before the disk's room is considered."""
    limits, catalog = situation.limits, situation.sources
    most = situation.slots("stage")
    if most == 0 or now < situation.paused_until.get("stage", now):
        return []
    here = catalog.in_state("staged", "building")
    waiting = (source.path for source in here if source.path not in situation.shelved)
    ahead = {path for path in waiting if situation.busy.get(path) != "build"}
    ahead |= {path for path, each in situation.busy.items() if each == "stage"}
    claimed = {source.sha256 for source in here} | {catalog[path].sha256 for path in situation.busy}
    queued = sum(catalog[path].size for path in ahead)
    chosen: list[str] = []
    # Files that the tokenizer or a run waits for go first and past the queue's limits: all else waits for
    # them.
    first = situation.wanted | situation.urgent
    for path in chain(sorted(first & catalog.keys()), catalog.waiting):
        if len(chosen) == most:
            break
        source = catalog[path]
        if not _may_stage(situation, source, now) or source.sha256 in claimed:
            continue
        full = len(ahead) >= limits.queue_files or queued + source.size > limits.queue_bytes
        if ahead and full and path not in first:
            break  # in listing order: a small file behind does not overtake
        chosen.append(path)
        claimed.add(source.sha256)
        ahead.add(path)
        queued += source.size
    return chosen


def _may_stage(situation: Situation, source: Source, now: float) -> bool:
    """Whether a source waits only for its turn; the cheapest checks come first, as many sources may wait."""
    path, receipt = source.path, situation.receipts.get(source.path)
    if source.state != "seen" or receipt is None or not receipt.usable or path in situation.beyond:
        return False
    return situation.allows("stage", path, now) and not situation.has_set(source)


def buildable(situation: Situation, now: float) -> list[str]:
    """Returns the paths to build next, before the disk's room is considered; begun builds come first."""
    if situation.key_of is None:
        return []
    here = situation.sources.in_state("staged", "building")
    free = [one for one in here if situation.allows("build", one.path, now)]
    ready = [one for one in free if not situation.is_published(one)]

    def order(one: Source) -> tuple[object, ...]:
        is_outgrown, is_urgent = one.path in situation.outgrown, one.path in situation.urgent
        return is_outgrown, not is_urgent, one.state != "building", one.path

    paths = (one.path for one in sorted(ready, key=order))
    return list(islice(situation.unclaimed(paths), situation.slots("build")))


def _releases(situation: Situation, now: float) -> Iterator[Action]:
    when: Mapping[str, tuple[SourceState, ...]] = {"after_proof": ("proven",), "after_sync": ("synced",)}
    for source in situation.sources.in_state(*when.get(situation.limits.release, ())):
        if not source.imported and situation.allows("release", source.path, now):
            yield Action("release", source.path)


# Moves: plan.residency decides which sets may leave and which are wanted back.


def decide_moves(situation: Situation, now: float) -> tuple[Action, ...]:
    """Returns the moves to begin now, within the limits; at most one for each path."""
    warm, catalog = situation.warm, situation.sources
    if not warm.answers:
        return tuple(_kept_hot(situation, now))
    left = (path for path in catalog.left_behind(situation.published) if path not in warm.wanted)
    # Finish begun evictions; and evict from hot a set that by its record is on warm only, unless wanted.
    leaving = dict.fromkeys((*catalog.evicting, *left))
    return (
        *situation.starts("evict", leaving, now),
        *situation.starts("hydrate", (path for path in warm.hydrate if path not in leaving), now),
        *situation.starts("sync", catalog.unsynced if warm.writable else (), now),
        *situation.starts("recall", situation.unclaimed(sorted(situation.recallable)), now),
    )


def _kept_hot(situation: Situation, now: float) -> Iterator[Action]:
    for path in situation.sources.evicting:
        is_there = situation.sources[path].key16 in situation.published
        if is_there and situation.allows("evict", path, now):
            yield Action("keep_hot", path)


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
    others = [catalog[other] for other in catalog.with_content(source.sha256) if other != path]
    if situation.has_set(source) or any(_comes(situation, other) for other in others):
        return False
    return source.state == "seen" or all(other.state == "duplicate" or other.never_came for other in others)


def _comes(situation: Situation, other: Source) -> bool:
    """Whether the content's set will be built from this other file."""
    if other.state in ("staged", "building"):
        return True
    receipt = situation.receipts.get(other.path)
    here = receipt is not None and receipt.state in _ON_ITS_WAY and receipt.sha256 == other.sha256
    return here and other.state in ("seen", "duplicate") and other.path not in situation.beyond
