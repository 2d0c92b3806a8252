"""Source records: how far each source file has come. The stage-shard loop alone writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from stoker.corpus.records.books import Books
from stoker.corpus.records.record_dir import Damaged, read_records
from stoker.store.errors import DataError
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged, body_of, read_record, values_of, write_record

SourceState = Literal[
    "seen", "staged", "building", "proven", "synced", "released", "quarantined", "duplicate"
]
PUBLISHED: frozenset[SourceState] = frozenset({"proven", "synced", "released"})
TERMINAL: frozenset[SourceState] = PUBLISHED | {"quarantined", "duplicate"}
DOWNLOAD_FAILED = "download_failed"  # why a source is quarantined whose file could not be fetched
SOURCE_ROTTEN = "source_rotten"  # and one whose file in a folder has not the content it once had
NEVER_CAME = (DOWNLOAD_FAILED, SOURCE_ROTTEN)
EXCEEDS_DISK = "exceeds_disk"  # why one is whose shard set is larger than hot

# Forward along the data's way; back to `seen` wherever the content changed or what the record claims is
# gone from disk. A set found published and proven moves its source to `proven` from any state before it; one
# whose warm copy was lost moves back there, to be copied again.
TRANSITIONS: Mapping[SourceState, frozenset[SourceState]] = {
    "seen": frozenset({"staged", "proven", "quarantined", "duplicate"}),
    "staged": frozenset({"seen", "building", "proven", "quarantined", "duplicate"}),
    "building": frozenset({"seen", "staged", "proven", "quarantined", "duplicate"}),
    "proven": frozenset({"seen", "synced", "released"}),
    "synced": frozenset({"seen", "released", "proven"}),
    "released": frozenset({"seen", "proven"}),
    "quarantined": frozenset({"seen"}),
    "duplicate": frozenset({"seen", "quarantined"}),
}

FORMER_DIGITS = 12  # of a content's hash, behind its path


@dataclass(frozen=True, slots=True)
class Source:
    """One source file's way.

    `size` (bytes) and `sha256` name the content the record speaks of, `key` its shard set (64 hex digits),
    `books` and `manifest_sha256` are the published manifest's. `attempts` counts builds that ended without
    a verdict; `deaths` are the row groups at which build workers died unexplained. `reason` and `column` say
    why it was quarantined, and which column was to blame. `on_warm`: a copy of its shard set was proven
    there; `evicting`: the set is about to leave the hot disk, an intent that is finished or taken back
    whatever happens; `evicted`: it is on warm only. `engine`: tokenizers where the fast engine was given up
    for its text. `imported`: its set was taken over as tokens; no file and no receipt stand behind it, and
    `size` and `sha256` are those of the tokens. `former`: the path whose file had this content until it was
    replaced, after the shard set was proven: no file and no receipt stand behind such a source either.
    `formers` are the contents (sha256, size) that this path's file had before and that have a source of
    their own.
    """

    dataset: str
    path: str
    size: int
    sha256: str
    state: SourceState = "seen"
    key: str | None = None
    attempts: int = 0
    reason: str | None = None
    books: Books | None = None
    evicted: bool = False
    manifest_sha256: str | None = None
    deaths: tuple[int, ...] = ()
    column: str | None = None
    evicting: bool = False
    on_warm: bool = False
    engine: str | None = None
    imported: bool = False
    former: str | None = None
    formers: tuple[tuple[str, int], ...] = ()

    @property
    def hot(self) -> bool:
        """Whether its shard set is published and lies on the hot disk, to stay there for now."""
        return self.state in PUBLISHED and not (self.evicted or self.evicting)

    @property
    def has_file(self) -> bool:
        """Whether a file of the source stands behind it: not behind imported tokens or a former content."""
        return not self.imported and self.former is None

    @property
    def never_came(self) -> bool:
        """Whether it is quarantined only because no file with its content came, which may yet happen."""
        return self.state == "quarantined" and self.reason in NEVER_CAME

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Source:
        """Read one; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        values = values_of(cls, record, "dataset", "path", "sha256", "state")
        if values["state"] not in TRANSITIONS:
            raise ValueError(f"state {values['state']!r}")
        if values["books"] is not None:
            values["books"] = Books.from_mapping(values["books"])
        values["deaths"] = tuple(values.get("deaths", ()))
        values["formers"] = tuple((str(sha256), int(size)) for sha256, size in values.get("formers", ()))
        values.setdefault("on_warm", values["evicted"] or values["state"] == "synced")
        return cls(**values)

    def to_record(self) -> dict[str, Any]:
        """The record's body."""
        books = None if self.books is None else self.books.to_mapping()
        return body_of(self) | {"books": books}

    def moved(self, state: SourceState, **changes: Any) -> Source:
        """This source in another state; raises DataError for a step that does not exist."""
        if state != self.state and state not in TRANSITIONS[self.state]:
            raise DataError(f"source {self.path}: no way leads from {self.state} to {state}")
        return replace(self, state=state, **changes)

    def renewed(self, *, size: int, sha256: str, reason: str | None = None) -> Source:
        """This source from the start, for the content given."""
        formers = self.formers
        if self.state in PUBLISHED and sha256 != self.sha256:
            formers = (*(one for one in formers if one[0] != self.sha256), (self.sha256, self.size))
        return Source(
            self.dataset,
            self.path,
            size,
            sha256,
            reason=reason,
            imported=self.imported,
            former=self.former,
            formers=formers,
        )


def former_name(sources: Mapping[str, Source], source: Source) -> str:
    """The path under which the source's content is kept once its file has another: a free one, or its own."""
    digits = FORMER_DIGITS
    while (name := f"{source.path}@{source.sha256[:digits]}") in sources:
        if sources[name].sha256 == source.sha256:
            break
        digits *= 2
    return name


def read_source(layout: StateLayout, dataset: str, path: str) -> Source | None:
    """The source of one path; None where it has none, or a damaged one, which its owner sets aside."""
    try:
        return Source.from_record(read_record(layout.source(dataset, path)))
    except (FileNotFoundError, RecordDamaged):
        return None


def read_sources(layout: StateLayout, dataset: str, damaged: Damaged | None = None) -> dict[str, Source]:
    """Every source of the dataset by path; damaged records are left out and handed to `damaged`."""
    return read_records(layout.sources, dataset, Source.from_record, damaged)


def write_source(layout: StateLayout, source: Source) -> None:
    """Make the source record durable under its path's record name."""
    write_record(layout.source(source.dataset, source.path), source.to_record())
