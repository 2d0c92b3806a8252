"""What becomes of what lies in quarantine: what goes, what is looked at again, what may go back. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from stoker.corpus.quarantine.directory import Kept
from stoker.corpus.records.sources import EXCEEDS_DISK, TERMINAL, Source

OVER_FILES = "quarantine.keep_files are kept, and newer ones are there"
OVER_BYTES = "quarantine.keep_bytes are kept, and newer ones fill them"
RELEASED = "its source was released, and has come to its end"

CLOCK_SLACK_S = 60.0  # a clock that was set right by less than this was no wrong clock
# Kinds that this budget is not about: theirs has rules of its own, or is nobody's.
_OTHERS = ("checkpoint", "other")
_NEVER = {
    "checkpoint": "a checkpoint that was proven wrong is never released: a run goes on from the newest one "
    "that is proven. To look at it, open it where it lies",
    "shards": "a wrong shard set is never put back: it is built again from its source, byte by byte the same",
    "record": "a damaged record is never put back: what it said was found again from evidence",
    "other": "Stoker did not put it there",
}


def drops(
    things: Sequence[Kept],
    sources: Mapping[str, Source],
    *,
    keep_files: int,
    keep_bytes: int,
    busy: Collection[str] = (),
) -> Iterator[tuple[Kept, str]]:
    """What has to go and why: what served its purpose, and the oldest over the budget of its kind.

    `things` is in order, newest first; the newest of a kind stays whatever its size, unless no file is kept.
    `busy` are the sources' paths at which something is being put in or looked at.
    """
    files: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for kept in things:
        if kept.kind in _OTHERS or kept.path in busy:
            continue
        if kept.dropping is not None:
            yield kept, str(kept.dropping.get("why", ""))
        elif kept.things and kept.released is not None and _is_over(kept, sources.get(kept.path)):
            yield kept, RELEASED
        elif kept.things:
            files[kept.kind] += 1
            sums[kept.kind] += kept.bytes
            if files[kept.kind] > keep_files:
                yield kept, OVER_FILES
            elif files[kept.kind] > 1 and sums[kept.kind] > keep_bytes:
                yield kept, OVER_BYTES


def _is_over(kept: Kept, source: Source | None) -> bool:
    """Whether nobody may need the kept copy of a released file any more."""
    return source is None or source.sha256 != kept.sha256 or source.state in TERMINAL


def findings(things: Sequence[Kept]) -> dict[tuple[str, str], Kept]:
    """The newest finding that stands against a content, by the source's path and sha256."""
    standing = (kept for kept in reversed(things) if kept.kind == "parquet" and kept.released is None)
    return {(kept.path, kept.sha256): kept for kept in standing}


def due(things: Sequence[Kept], sources: Iterable[Source], *, now: float, every: float | None) -> list[Kept]:
    """The findings against these quarantined sources to look at again, the longest waiting first.

    Every `every` seconds, None for never; `now` is in seconds since 1970. Each finding has its own clock, on
    disk. One that stands in the future stood under a wrong clock: it is due.
    """
    known = findings(things)
    # There is nothing to look at, or nothing in doubt: another try would only fill the disk again.
    doubtful = [one for one in sources if not one.never_came and one.reason != EXCEEDS_DISK]
    standing = [known[content] for one in doubtful if (content := (one.path, one.sha256)) in known]
    found = [
        kept for kept in standing if every is not None and not -CLOCK_SLACK_S <= now - kept.looked_at < every
    ]
    return sorted(found, key=lambda kept: (kept.looked_at, kept.name))


def refusal(kept: Kept, source: Source | None) -> str | None:
    """Why this cannot be released, None where it can; that it was released already is not asked here."""
    if kept.kind != "parquet":
        return _NEVER[kept.kind]
    if source is None:
        return f"no source {kept.path!r} is on record"
    if source.imported:
        return f"{source.path} was imported: there is no file to look at; import it again"
    if source.state != "quarantined":
        return f"{source.path} is not quarantined: it is {source.state}"
    if source.sha256 != kept.sha256:
        return (
            f"{source.path} is another file by now ({source.sha256[:16]}, this was {kept.sha256[:16]}), "
            "quarantined for a reason of its own"
        )
    return None
