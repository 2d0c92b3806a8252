"""Source records: how far the stage-shard loop has come with each source file. Only the loop writes them."""

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
DOWNLOAD_FAILED = "download_failed"  # reason to quarantine: the file could not be fetched
SOURCE_ROTTEN = "source_rotten"  # reason to quarantine: a folder's file lost the content of its receipt
NEVER_CAME = (DOWNLOAD_FAILED, SOURCE_ROTTEN)
EXCEEDS_DISK = "exceeds_disk"  # reason to quarantine: the shard set would be larger than hot

# Forward in the order of the work; back to `seen` when the content changed or a disk lacks what the record
# claims. A set that is found published and proven moves its source to `proven` from any earlier state; a
# source whose warm copy was lost moves back to `proven`, to be copied again.
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
    """How far the stage-shard loop has come with one source file, or with one imported or former content."""

    dataset: str
    path: str
    size: int  # bytes of the content that the record is about
    sha256: str  # of that content: the file's, or the tokens' of an imported set
    state: SourceState = "seen"
    key: str | None = None  # of its shard set, 64 hex digits
    attempts: int = 0  # builds that ended without a verdict
    reason: str | None = None  # of its quarantine
    books: Books | None = None  # the published manifest's
    evicted: bool = False  # the set is on warm only
    manifest_sha256: str | None = None  # of the published manifest
    deaths: tuple[int, ...] = ()  # the row groups at which build workers died unexplained
    column: str | None = None  # that caused its quarantine
    evicting: bool = False  # intent: the set leaves hot; the next start finishes it or takes it back
    on_warm: bool = False  # a copy of the set was proven on warm
    engine: str | None = None  # "tokenizers" where the fast engine was given up for this file's text
    imported: bool = False  # the set was imported as tokens: there is no file and no receipt
    # The path whose file had this content until another replaced it, after the shard set was proven: there is
    # no file and no receipt of such a source either.
    former: str | None = None
    # (sha256, size) of the contents that this path's file had before and that have a source record.
    formers: tuple[tuple[str, int], ...] = ()

    @property
    def hot(self) -> bool:
        """Whether its shard set is published on hot and is not about to be evicted."""
        return self.state in PUBLISHED and not (self.evicted or self.evicting)

    @property
    def has_file(self) -> bool:
        """Whether the source has a file: imported tokens and former contents have none."""
        return not self.imported and self.former is None

    @property
    def never_came(self) -> bool:
        """Whether the source is quarantined only because its content never arrived; it may still arrive."""
        return self.state == "quarantined" and self.reason in NEVER_CAME

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Source:
        """Parses a record; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
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
        books = None if self.books is None else self.books.to_mapping()
        return body_of(self) | {"books": books}

    def moved(self, state: SourceState, **changes: Any) -> Source:
        """Returns this source in another state; raises DataError for a step that does not exist."""
        if state != self.state and state not in TRANSITIONS[self.state]:
            raise DataError(f"source {self.path}: no way leads from {self.state} to {state}")
        return replace(self, state=state, **changes)

    def renewed(self, *, size: int, sha256: str, reason: str | None = None) -> Source:
        """Returns this source in its first state, for the given content."""
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
    """Returns the path under which a content keeps a record once its file has another content.

    It is unused, or already this content's own.
    """
    digits = FORMER_DIGITS
    while (name := f"{source.path}@{source.sha256[:digits]}") in sources:
        if sources[name].sha256 == source.sha256:
            break
        digits *= 2
    return name


def read_source(layout: StateLayout, dataset: str, path: str) -> Source | None:
    """Returns the source of one path; None where it is missing or damaged (the loop sets it aside)."""
    try:
        return Source.from_record(read_record(layout.source(dataset, path)))
    except (FileNotFoundError, RecordDamaged):
        return None


def read_sources(layout: StateLayout, dataset: str, damaged: Damaged | None = None) -> dict[str, Source]:
    """Returns every source of the dataset by path; damaged records are left out and passed to `damaged`."""
    return read_records(layout.sources, dataset, Source.from_record, damaged)


def write_source(layout: StateLayout, source: Source) -> None:
    """Writes the source record durably, under the record name of its path."""
    write_record(layout.source(source.dataset, source.path), source.to_record())
