"""What the stage-shard loop does next: one pure function from what is known to a tuple of actions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from stoker.corpus.records.index import KEY16, OPEN
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.schedule.state import Action, Situation


def decide(situation: Situation, now: float) -> tuple[Action, ...]:
    """The actions to take now, within the limits; taken all, none contradicts another.

    Work is claimed by content: of two paths with the same sha256 one is worked on, the other waits and
    becomes its duplicate once the set is proven.
    """
    renewals = tuple(stale(situation))
    if renewals:  # everything else depends on the records being of the content at hand
        return renewals
    if moves := decide_moves(situation, now):
        return moves  # what comes back from warm has its room before anything new begins
    return (
        *_duplicates(situation),
        *_lost_contents(situation),
        *_quarantines(situation, now),
        *_proofs(situation, now),
        *situation.starts("stage", stageable(situation, now), now),
        *situation.starts("build", buildable(situation, now), now),
        *_releases(situation, now),
    )


def stale(situation: Situation) -> Iterator[Action]:
    """What to do about the records that speak of other content than their receipt, or of a file that could
    not be fetched, or came after all.

    Duplicates of a content that has no shard set any more begin anew too: the set was lost, and the file it
    was made of may be gone or another by now, while theirs is here.
    """
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
        elif _is_unrecorded(situation, source):
            continue  # its set is proven first, and kept as a former content then
        elif source.sha256 != receipt.sha256 or source.never_came:
            yield Action("replace" if source.state in PUBLISHED else "restart", path)
    for path in chain.from_iterable(catalog.unsettled):
        source, receipt = catalog[path], receipts.get(path)
        if source.state != "duplicate" or catalog.owner(source.sha256) is not None or path in situation.busy:
            continue
        if receipt is not None and receipt.usable and receipt.sha256 == source.sha256:
            yield Action("restart", path)


def _is_unrecorded(situation: Situation, source: Source) -> bool:
    """Whether its set was published and nobody lived to write it down: renewed now, it would be nobody's."""
    return (
        source.state in OPEN
        and situation.is_published(source)
        and situation.sources.owner(source.sha256) is None
    )


def differs(source: Source | None, receipt: Receipt | None) -> bool:
    """Whether a receipt names other content than the record of its path, or another fate of its download."""
    if receipt is None:
        return False
    if source is None or source.sha256 != receipt.sha256:
        return True
    return source.state == "seen" if receipt.unobtainable else source.never_came


def _give_up(situation: Situation, source: Source | None, receipt: Receipt) -> Iterator[Action]:
    """A file that could not be fetched, or rotted, is missed only where no shard set has its content."""
    path = receipt.path
    if source is None and path not in situation.beyond:
        # What is known of its content may tell that its set is there.
        yield Action("restart" if receipt.sha256 else "give_up", path)
    elif source is not None and source.state == "seen" and path not in situation.beyond:
        found = situation.uncertain or path in situation.recallable or situation.is_published(source)
        if not found and situation.sources.owner(source.sha256) is None:
            yield Action("give_up", path)


def _duplicates(situation: Situation) -> Iterator[Action]:
    catalog = situation.sources
    for paths in catalog.unsettled:
        owner = next((path for path in paths if catalog[path].state in PUBLISHED), None)
        for path in paths if owner is not None else ():
            if catalog[path].state in OPEN and path not in situation.busy:
                yield Action("duplicate", path, str(owner))


def _lost_contents(situation: Situation) -> Iterator[Action]:
    """Former and imported contents without a set, when none is to be found and no other file has them."""
    catalog = situation.sources
    if situation.uncertain or situation.key_of is None:
        return
    for path in (*catalog.formers, *catalog.imported):
        source = catalog[path]
        found = path in situation.recallable or path in situation.busy or path in situation.convicted
        if source.state != "seen" or found or situation.is_published(source):
            continue
        others = (catalog[other] for other in catalog.with_content(source.sha256) if other != path)
        if all(_has_no_file_any_more(other) for other in others):
            yield Action("give_up_content", path)


def _has_no_file_any_more(source: Source) -> bool:
    return not source.has_file or (source.state == "quarantined" and not source.never_came)


def _proofs(situation: Situation, now: float) -> Iterator[Action]:
    """Proofs of the sets on hot that no record owns, and of those that somebody asked to prove."""
    catalog, key_of = situation.sources, situation.key_of
    if key_of is not None:
        asked = (path for path in situation.to_prove if catalog[path].state in PUBLISHED)
        paths = (*catalog.open_with(situation.published, key_of), *sorted(asked))
        there = (path for path in paths if situation.is_published(catalog[path]))
        free = (path for path in there if situation.allows("prove", path, now))
        yield from situation.starts("prove", situation.unclaimed(free), now)


def stageable(situation: Situation, now: float) -> list[str]:
    """The paths to stage next within workers and queue, if only there is room on the disk."""
    limits, catalog = situation.limits, situation.sources
    if now < situation.paused_until.get("stage", now):
        return []
    most = situation.slots("stage")
    here = catalog.in_state("staged", "building")
    waiting = (source.path for source in here if source.path not in situation.shelved)
    ahead = {path for path in waiting if situation.busy.get(path) != "build"}
    ahead |= {path for path, each in situation.busy.items() if each == "stage"}
    claimed = {source.sha256 for source in here} | {catalog[path].sha256 for path in situation.busy}
    queued = sum(catalog[path].size for path in ahead)
    chosen: list[str] = []
    # What the tokenizer or a run waits for goes first and past the queue's limits: all else waits for it.
    first = situation.wanted | situation.urgent
    for path in chain(sorted(first & catalog.keys()), catalog.waiting):
        if len(chosen) == most:
            break
        source = catalog[path]
        if not _may_stage(situation, source, now) or source.sha256 in claimed:
            continue
        full = len(ahead) >= limits.queue_files or queued + source.size > limits.queue_bytes
        if ahead and full and path not in first:
            break  # in listing order: a small one behind does not overtake it
        chosen.append(path)
        claimed.add(source.sha256)
        ahead.add(path)
        queued += source.size
    return chosen


def _may_stage(situation: Situation, source: Source, now: float) -> bool:
    """Whether a source waits for nothing but its turn; the cheapest questions first, for many may wait."""
    path, receipt = source.path, situation.receipts.get(source.path)
    if source.state != "seen" or receipt is None or not receipt.usable:
        return False
    if path in situation.recallable or path in situation.beyond:
        return False
    if not situation.allows("stage", path, now) or situation.sources.owner(source.sha256) is not None:
        return False
    return not situation.is_published(source)


def buildable(situation: Situation, now: float) -> list[str]:
    """The paths to build next, if only there is room on the disk; what was begun goes before what was not."""
    if situation.key_of is None:
        return []
    here = situation.sources.in_state("staged", "building")
    ready = [one for one in here if not situation.is_published(one)]
    ready = [one for one in ready if situation.allows("build", one.path, now)]

    def order(one: Source) -> tuple[object, ...]:
        is_outgrown, is_urgent = one.path in situation.outgrown, one.path in situation.urgent
        return is_outgrown, not is_urgent, one.state != "building", one.path

    paths = (one.path for one in sorted(ready, key=order))
    return list(islice(situation.unclaimed(paths), situation.slots("build")))


def _quarantines(situation: Situation, now: float) -> Iterator[Action]:
    for path in sorted(situation.convicted):
        if situation.allows("quarantine", path, now):
            yield Action("quarantine", path)


def _releases(situation: Situation, now: float) -> Iterator[Action]:
    when, sources = situation.limits.release, situation.sources
    if when == "never":
        return
    for source in sources.in_state("proven" if when == "after_proof" else "synced"):
        if not source.imported and situation.allows("release", source.path, now):
            yield Action("release", source.path)


# Moves: which sets may leave and which are wanted back is plan.residency's to say


def decide_moves(situation: Situation, now: float) -> tuple[Action, ...]:
    """The moves to begin now, within the limits; at most one for a path."""
    warm, catalog = situation.warm, situation.sources
    if not warm.answers:
        return tuple(_kept_hot(situation, now))
    left = (path for path in catalog.left_behind(situation.published) if path not in warm.wanted)
    return (
        # Finish what was begun; and take off hot what a record says is on warm only, unless it is wanted.
        *situation.starts("evict", dict.fromkeys((*catalog.evicting, *left)), now),
        *situation.starts("hydrate", warm.hydrate, now),
        *situation.starts("sync", catalog.unsynced if warm.writable else (), now),
        *situation.starts("recall", situation.unclaimed(sorted(situation.recallable)), now),
    )


def _kept_hot(situation: Situation, now: float) -> Iterator[Action]:
    for path in situation.sources.evicting:
        is_there = str(situation.sources[path].key)[:KEY16] in situation.published
        if is_there and situation.allows("evict", path, now):
            yield Action("keep_hot", path)
