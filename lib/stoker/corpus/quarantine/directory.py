"""The quarantine directory: one folder for each bad file or set, which holds it and its reason.json.

Marks that Stoker adds to a reason, each when it becomes true:
    revalidated, revalidations   when the content was last found still bad, and how often
    released    {"time", "why"}: its source was given another try, and the event is recorded
    dropping    {"why", "bytes"}: the content is removed or to be removed; the event is not recorded yet
    dropped     {"time", "why", "bytes"}: the content is removed, and the event is recorded
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from stoker.corpus.records.sources import EXCEEDS_DISK, TERMINAL, Source
from stoker.store.errors import DataError, storage_errors
from stoker.store.files import make_dir, tree_bytes
from stoker.store.record import RecordDamaged, read_record, utc_now, write_record

REASON = "reason.json"
KINDS = ("parquet", "shards", "record", "checkpoint")
RELEASE, DROP = "release_quarantined", "drop_quarantined"  # the requests about it


@dataclass(frozen=True)
class QuarantineEntry:
    """One folder of the quarantine."""

    name: str  # of the folder; commands take this name
    kind: str
    things: tuple[str, ...] = ()  # the names beside reason.json
    bytes: int = 0  # of all things
    body: Mapping[str, Any] = field(default_factory=dict)  # the whole reason, or why it cannot be read

    @property
    def path(self) -> str:
        """The path of the source, or of the file, that was quarantined."""
        return str(self.body.get("path") or "")

    @property
    def sha256(self) -> str:
        return str(self.body.get("sha256") or "")

    @property
    def reason(self) -> str:
        return str(self.body.get("reason") or "")

    @property
    def when(self) -> str:
        """The time of the quarantine, as UTC text."""
        return str(self.body.get("time") or "")

    @property
    def looked_at(self) -> float:
        """The time of the last look that found it bad, in seconds since 1970; 0 where that is unknown."""
        return max(_seconds(self.when), _seconds(str(self.body.get("revalidated") or "")))

    @property
    def released(self) -> Mapping[str, Any] | None:
        return self._mark("released")

    @property
    def dropping(self) -> Mapping[str, Any] | None:
        return self._mark("dropping")

    @property
    def dropped(self) -> Mapping[str, Any] | None:
        return self._mark("dropped")

    def _mark(self, name: str) -> Mapping[str, Any] | None:
        value = self.body.get(name)
        return value if isinstance(value, Mapping) else None


def read_quarantine(directory: Path) -> tuple[QuarantineEntry, ...]:
    """Returns every folder of the quarantine, newest first."""
    found = []
    with storage_errors("look through", directory):
        for folder in directory.glob("[!.]*"):
            try:
                if folder.is_dir() and not folder.is_symlink():
                    found.append(read_folder(folder))
            except FileNotFoundError:
                continue  # removed with its reason meanwhile
    return tuple(sorted(found, key=lambda kept: (kept.when, kept.name), reverse=True))


def mark(folder: Path, **changes: Any) -> None:
    """Adds fields to a folder's reason, durably; None removes a field.

    A damaged or missing reason is replaced by a reason "unknown".
    """
    try:
        body = read_record(folder / REASON)
    except (RecordDamaged, FileNotFoundError) as error:
        body = {"v": 1, "kind": kind_of(folder.name), "path": None, "reason": "unknown", "detail": str(error)}
    # A field that the reason holds as None (no row group is to blame) stays.
    kept = {name: value for name, value in body.items() if name not in changes}
    marks = {name: value for name, value in changes.items() if value is not None}
    write_record(folder / REASON, kept | marks)


def open_folder(directory: Path, kind: str, name: str, reason: Mapping[str, Any]) -> Path:
    """Returns the folder of this finding, and makes it first if it is missing.

    A folder whose finding was released is never used again: it belongs to an earlier finding.
    """
    body = {"v": 1, "kind": kind, "path": None, "sha256": None, **reason}
    for folder in sorted(directory.glob(f"{kind}-{name}-*"), reverse=True):
        try:
            known = read_record(folder / REASON)
        except (FileNotFoundError, DataError):
            continue
        if "released" not in known and all(known.get(field) == value for field, value in body.items()):
            return folder
    time = utc_now()
    stem = f"{kind}-{name}-{time.replace('-', '').replace(':', '')}"
    names = chain((stem,), (f"{stem}-{number}" for number in count(2)))
    folder = next(directory / each for each in names if not os.path.lexists(directory / each / REASON))
    make_dir(folder)
    write_record(folder / REASON, {**body, "time": time})
    return folder


def kind_of(name: str) -> str:
    """Returns the kind that a folder's name begins with; "other" for a folder that Stoker did not make."""
    kind = name.split("-", 1)[0]
    return kind if kind in KINDS else "other"


def read_folder(folder: Path) -> QuarantineEntry:
    """Returns one folder of the quarantine; its reason says why where it cannot be read."""
    try:
        body = read_record(folder / REASON)
    except FileNotFoundError:
        body = {"reason": f"no {REASON}"}
    except RecordDamaged as error:
        body = {"reason": f"{REASON} is damaged: {error}"}
    things = sorted(one for one in folder.iterdir() if not one.name.startswith((REASON, f".tmp-{REASON}")))
    names = tuple(thing.name for thing in things)
    return QuarantineEntry(folder.name, kind_of(folder.name), names, sum(map(tree_bytes, things)), body)


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


OVER_FILES = "the newest 100 of its kind are kept, and newer ones are there"
OVER_BYTES = "quarantine.keep_bytes are kept, and newer ones fill them"
RELEASED = "its source was released, and has come to its end"

CLOCK_SLACK_S = 60.0  # a smaller correction of the clock does not make a time invalid
_NEVER = {
    "checkpoint": "a checkpoint that was proven wrong is never released: a run continues from the newest one "
    "that is proven. To examine it, open it where it is",
    "shards": "a wrong shard set is never put back: it is built again from its source, byte by byte the same",
    "record": "a damaged record is never put back: its content was restored from other records",
    "other": "Stoker did not put it there",
}


def drops(
    things: Sequence[QuarantineEntry],
    sources: Mapping[str, Source],
    *,
    keep_files: int,
    keep_bytes: int,
    busy: Collection[str] = (),
) -> Iterator[tuple[QuarantineEntry, str]]:
    """Yields findings to drop, and why: settled releases, and the oldest over the budget of their kind.

    `things` is sorted newest first; the newest of a kind stays whatever its size, unless keep_files is 0.
    `busy` are the paths of sources with a worker at their quarantine folder.
    """
    files: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for kept in things:
        # Checkpoints have their own rules, and "other" is not Stoker's.
        if kept.kind in ("checkpoint", "other") or kept.path in busy:
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


def _is_over(kept: QuarantineEntry, source: Source | None) -> bool:
    """Whether the kept copy of a released file can no longer be needed."""
    return source is None or source.sha256 != kept.sha256 or source.state in TERMINAL


def findings(things: Sequence[QuarantineEntry]) -> dict[tuple[str, str], QuarantineEntry]:
    """Returns the newest unreleased parquet finding for each content, by source path and sha256."""
    standing = (kept for kept in reversed(things) if kept.kind == "parquet" and kept.released is None)
    return {(kept.path, kept.sha256): kept for kept in standing}


def due(
    things: Sequence[QuarantineEntry], sources: Iterable[Source], *, now: float, every: float | None
) -> list[QuarantineEntry]:
    """Returns the findings against these sources that are due for another look, longest wait first.

    Each is due every `every` seconds, never with None; `now` is in seconds since 1970. The time of a
    finding's last look is on disk. A time in the future comes from a wrong clock: that finding is due.
    """
    known = findings(things)
    # The other sources have no file to check, or leave no doubt: another try would only fill the disk.
    bad = (one for one in sources if one.state == "quarantined" and one.has_file)
    doubtful = [one for one in bad if not one.never_came and one.reason != EXCEEDS_DISK]
    standing = [known[content] for one in doubtful if (content := (one.path, one.sha256)) in known]
    found = [
        kept for kept in standing if every is not None and not -CLOCK_SLACK_S <= now - kept.looked_at < every
    ]
    return sorted(found, key=lambda kept: (kept.looked_at, kept.name))


def refusal(kept: QuarantineEntry, source: Source | None) -> str | None:
    """Returns why this cannot be released, None where it can; does not check for an earlier release."""
    if kept.kind != "parquet":
        return _NEVER[kept.kind]
    if source is None:
        return f"no source {kept.path!r} is on record"
    if source.state != "quarantined":
        return f"{source.path} is not quarantined: it is {source.state}"
    if source.sha256 != kept.sha256:
        return (
            f"{source.path} is another file by now ({source.sha256[:16]}, this was {kept.sha256[:16]}), "
            "quarantined for a reason of its own"
        )
    return None
