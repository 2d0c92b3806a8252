"""Pure rules of the quarantine: which findings are dropped, checked again, or may be released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from stoker.corpus.quarantine.directory import Kept
from stoker.corpus.records.sources import EXCEEDS_DISK, TERMINAL, Source

OVER_FILES = "quarantine.keep_files are kept, and newer ones are there"
OVER_BYTES = "quarantine.keep_bytes are kept, and newer ones fill them"
RELEASED = "its source was released, and has come to its end"

CLOCK_SLACK_S = 60.0  # a smaller correction of the clock does not make a time invalid
# Kinds outside this budget: checkpoints have their own rules, "other" is not Stoker's.
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
    """Yields findings to drop, and why: settled releases, and the oldest over the budget of their kind.

    `things` is sorted newest first; the newest of a kind stays whatever its size, unless keep_files is 0.
    `busy` are the paths of sources with a worker at their quarantine folder.
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
    """Whether the kept copy of a released file can no longer be needed."""
    return source is None or source.sha256 != kept.sha256 or source.state in TERMINAL


def findings(things: Sequence[Kept]) -> dict[tuple[str, str], Kept]:
    """Returns the newest unreleased parquet finding for each content, by source path and sha256."""
    standing = (kept for kept in reversed(things) if kept.kind == "parquet" and kept.released is None)
    return {(kept.path, kept.sha256): kept for kept in standing}


def due(things: Sequence[Kept], sources: Iterable[Source], *, now: float, every: float | None) -> list[Kept]:
    """Returns the findings against these sources that are due for another look, longest wait first.

    Each is due every `every` seconds, never with None; `now` is in seconds since 1970. The time of a
    finding's last look is on disk. A time in the future comes from a wrong clock: that finding is due.
    """
    known = findings(things)
    # The other sources have no file to look at, or leave no doubt: another try would only fill the disk.
    doubtful = [one for one in sources if not one.never_came and one.reason != EXCEEDS_DISK]
    standing = [known[content] for one in doubtful if (content := (one.path, one.sha256)) in known]
    found = [
        kept for kept in standing if every is not None and not -CLOCK_SLACK_S <= now - kept.looked_at < every
    ]
    return sorted(found, key=lambda kept: (kept.looked_at, kept.name))


def refusal(kept: Kept, source: Source | None) -> str | None:
    """Returns why this cannot be released, None where it can; does not check for an earlier release."""
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
