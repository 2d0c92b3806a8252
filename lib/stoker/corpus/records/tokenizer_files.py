"""Which files the tokenizer is trained on: the first `train_bytes` of the listing, without unusable files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.corpus.records.listing import Listing
from stoker.corpus.records.sources import Source


@dataclass(frozen=True)
class TrainingSet:
    """The files that the tokenizer is trained on, as far as they are readable."""

    files: tuple[tuple[str, str], ...]  # readable, as (path, sha256) in listing order
    wanted: frozenset[str]  # the paths that are not readable yet
    ready: bool  # no path is wanted, and the files have enough bytes or the listing is complete


def choose(listing: Listing | None, sources: Mapping[str, Source], train_bytes: int) -> TrainingSet:
    """Returns the files in listing order until their sizes reach train_bytes.

    A quarantined file is passed over. A content counts once and is readable under whichever path was staged.
    A file that is not readable yet keeps its place, so that the choice depends on the listing alone and not
    on the order of events.
    """
    if listing is None:
        return TrainingSet((), frozenset(), ready=False)
    readable = {source.sha256 for source in sources.values() if source.state not in ("seen", "quarantined")}
    files: list[tuple[str, str]] = []
    wanted: set[str] = set()
    contents: set[str] = set()
    total = 0
    for path, size in listing.files:
        if total >= train_bytes:
            break
        source = sources.get(path)
        if source is not None and (source.state == "quarantined" or source.sha256 in contents):
            continue
        total += size
        if source is not None and source.sha256 in readable:
            contents.add(source.sha256)
            files.append((path, source.sha256))
        else:
            wanted.add(path)
    enough = total >= train_bytes or listing.complete
    return TrainingSet(tuple(files), frozenset(wanted), ready=enough and bool(files) and not wanted)
