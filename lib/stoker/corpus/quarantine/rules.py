"""What becomes of what lies in quarantine: what goes, what is looked at again, what may go back. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Drop:
    """A thing that goes, and why."""

    kept: Kept
    why: str


def drops(
    things: Sequence[Kept],
    sources: Mapping[str, Source],
    *,
    keep_files: int,
    keep_bytes: int,
    busy: Collection[str] = (),
) -> Iterator[Drop]:
    """What has to go: what was begun, what served its purpose, and the oldest over the budget of its kind.

    `things` is in order, newest first; the newest of a kind stays whatever its size, unless no file is kept.
    `busy` are the sources' paths at which something is being put in or looked at.
    """
    files: dict[str, int] = {}
    sums: dict[str, int] = {}
    for kept in things:
        if kept.kind in _OTHERS or (kept.path in busy and kept.kind in ("parquet", "shards")):
            continue
        if kept.dropping is not None:
            yield Drop(kept, str(kept.dropping.get("why", "")))
            continue
        if not kept.things:
            continue
        if kept.released is not None and _is_over(kept, sources.get(kept.path)):
            yield Drop(kept, RELEASED)
            continue
        files[kept.kind] = files.get(kept.kind, 0) + 1
        sums[kept.kind] = sums.get(kept.kind, 0) + kept.bytes
        if files[kept.kind] > keep_files:
            yield Drop(kept, OVER_FILES)
        elif files[kept.kind] > 1 and sums[kept.kind] > keep_bytes:
            yield Drop(kept, OVER_BYTES)


def _is_over(kept: Kept, source: Source | None) -> bool:
    """Whether nobody may need the kept copy of a released file any more."""
    return source is None or source.sha256 != kept.sha256 or source.state in TERMINAL


def findings(things: Sequence[Kept]) -> dict[tuple[str, str], Kept]:
    """The newest finding that stands against a content, by the source's path and sha256."""
    standing = (kept for kept in reversed(things) if kept.kind == "parquet" and kept.released is None)
    return {(kept.path, kept.sha256): kept for kept in standing}


def homeless(sources: Mapping[str, Source], things: Sequence[Kept]) -> list[Source]:
    """The quarantined sources whose finding somebody took away: they would never be looked at again."""
    known = findings(things)
    quarantined = (source for source in sources.values() if source.state == "quarantined")
    return [source for source in quarantined if (source.path, source.sha256) not in known]


def due(
    things: Sequence[Kept],
    sources: Mapping[str, Source],
    *,
    now: float,
    every: float | None,
    asked_at: float | None = None,
) -> list[Kept]:
    """The findings to look at again, the longest waiting first; times are seconds since 1970.

    Every `every` seconds, None for never; and what was not looked at since `asked_at`. Each finding has its
    own clock, on disk. One that stands in the future stood under a wrong clock: it is due.
    """
    known = findings(things)
    quarantined = (source for source in sources.values() if source.state == "quarantined")
    # There is nothing to look at, or nothing in doubt: another try would only fill the disk again.
    quarantined = (one for one in quarantined if not one.never_came and one.reason != EXCEEDS_DISK)
    standing = (known.get((source.path, source.sha256)) for source in quarantined)
    found = [kept for kept in standing if kept is not None and _is_due(kept, now, every, asked_at)]
    return sorted(found, key=lambda kept: (kept.looked_at, kept.name))


def _is_due(kept: Kept, now: float, every: float | None, asked_at: float | None) -> bool:
    if asked_at is not None and kept.looked_at < asked_at:
        return True
    return every is not None and not -CLOCK_SLACK_S <= now - kept.looked_at < every


def refusal(kept: Kept, source: Source | None) -> str | None:
    """Why this cannot be released, None where it can; that it was released already is not asked here."""
    if kept.kind != "parquet":
        return _NEVER.get(kept.kind, _NEVER["other"])
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
