"""What the stage-shard loop asks of the download watchdog about the files that were fetched: pure decisions.

A fetched file is given back (released) once its shard set stands for it, and fetched again when the set was
lost. The watchdog alone touches the landing; each wish becomes one request to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from stoker.corpus.records.receipts import Receipt, ReceiptState
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.state import Situation

Verb = Literal["release", "fetch"]
VERBS: tuple[Verb, ...] = ("release", "fetch")
_REMOVED: tuple[ReceiptState, ...] = ("releasing", "released")
_ON_ITS_WAY: tuple[ReceiptState, ...] = ("verified", "unproven", "disputed")


@dataclass(frozen=True)
class Wish:
    """To have the path's file removed from the landing, or to have it fetched again.

    `sha256` is its receipt's. `owner` is the path whose shard set stands for the content: the path itself, or
    for a duplicate another one; empty for a fetch.
    """

    verb: Verb
    path: str
    sha256: str
    owner: str = ""


def may_wish(source: Source | None, receipt: Receipt | None) -> bool:
    """Whether a path may have a wish, now or later without either of its records changing."""
    if source is None or receipt is None or not source.has_file:
        return False
    if receipt.usable:
        return source.state in ("released", "duplicate") and source.sha256 == receipt.sha256
    return receipt.state in _REMOVED and source.state in ("seen", "duplicate")


def wishes(
    situation: Situation,
    paths: Iterable[str],
    *,
    under_way: Mapping[str, Verb],
    most: Mapping[Verb, int],
) -> Iterator[Wish]:
    """What to ask about these paths: `under_way` is asked already, `most` may be under way of each verb.

    What the tokenizer or a run waits for comes first, the rest in listing order; of one content one file is
    fetched.
    """
    room = {verb: most[verb] - sum(1 for each in under_way.values() if each == verb) for verb in VERBS}
    coming = {
        situation.sources[path].sha256
        for path, verb in under_way.items()
        if verb == "fetch" and path in situation.sources
    }
    first = situation.wanted | situation.urgent
    for path in sorted(paths, key=lambda path: (path not in first, path)):
        if not any(left > 0 for left in room.values()):
            return
        wish = None if path in under_way else _wish(situation, path)
        if wish is None or room[wish.verb] <= 0:
            continue
        content = situation.sources[path].sha256
        if wish.verb == "fetch" and content in coming:
            continue
        coming |= {content} if wish.verb == "fetch" else set()
        room[wish.verb] -= 1
        yield wish


def _wish(situation: Situation, path: str) -> Wish | None:
    source, receipt = situation.sources.get(path), situation.receipts.get(path)
    if source is None or receipt is None or not may_wish(source, receipt) or path in situation.busy:
        return None
    if receipt.usable:
        return _release(situation, source)
    return Wish("fetch", path, receipt.sha256) if _is_missed(situation, source) else None


def _release(situation: Situation, source: Source) -> Wish | None:
    """A file goes when the set of its content is as safe as the set of one whose file on hot went.

    A quarantined source's file stays: it is what the verdict can be checked by.
    """
    catalog = situation.catalog
    if situation.limits.release == "never" or source.path in situation.invalid_sets:
        return None
    same = [source.path] if source.state == "released" else catalog.with_content(source.sha256)
    safe = (path for path in same if catalog[path].state == "released")
    owner = next((path for path in safe if path not in situation.invalid_sets), None)
    return None if owner is None else Wish("release", source.path, source.sha256, owner)


def _is_missed(situation: Situation, source: Source) -> bool:
    """Whether the content has no shard set, and no file to make one of but one that has to come again."""
    path, catalog = source.path, situation.catalog
    if situation.uncertain or path in situation.beyond or path in situation.shelved:
        return False
    if situation.key_of is None and path not in situation.wanted:
        return False  # its set may lie there: that shows once it is known what sets are called
    if path in situation.recallable or situation.is_published(source):
        return False
    others = [catalog[other] for other in catalog.with_content(source.sha256) if other != path]
    if catalog.owner(source.sha256) is not None or any(_comes(situation, other) for other in others):
        return False
    if source.state == "seen":
        return True
    return all(other.state == "duplicate" or other.never_came for other in others)


def _comes(situation: Situation, other: Source) -> bool:
    """Whether the content's set will be made of this other file."""
    if other.state in ("staged", "building"):
        return True
    receipt = situation.receipts.get(other.path)
    here = receipt is not None and receipt.state in _ON_ITS_WAY and receipt.sha256 == other.sha256
    return here and other.state in ("seen", "duplicate") and other.path not in situation.beyond


def bytes_to_release(
    paths: Collection[str], sources: Mapping[str, Source], receipts: Mapping[str, Receipt]
) -> int:
    """Bytes in the landing of these paths' files, as far as their sets stand for them."""
    return sum(
        sources[path].size for path in paths if path in sources and path in receipts and receipts[path].usable
    )
