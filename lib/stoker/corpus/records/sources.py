"""Source records and their books: how far the stage-shard loop has come with each source file.

Only the loop writes them. A set's manifest holds its books, too: rows, documents, tokens, drops.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from stoker.corpus.records.record_dir import Damaged, ignore, read_records
from stoker.store.errors import DataError
from stoker.store.layout import StateLayout
from stoker.store.record import body_of, read_whole, values_of, write_record

SPLITS = ("train", "val")
COUNTED = ("rows", "chars", "train_documents", "train_tokens", "val_documents", "val_tokens")


@dataclass(frozen=True, slots=True)
class Books:
    """Counts of one published set; one that an earlier version imported has None where it did not count."""

    rows: int | None  # that were read from the source
    documents: int | None  # that were kept
    chars: int | None  # of the source's text
    tokens: int
    train_documents: int | None
    train_tokens: int
    val_documents: int | None  # of the held-out split
    val_tokens: int
    dropped: tuple[tuple[str, int], ...] | None  # rows by reason, as pairs: 50,000 mappings take 4 MB more

    @classmethod
    def from_mapping(cls, books: Mapping[str, Any]) -> Books:
        """Parses a record's or manifest's books; raises KeyError or TypeError where a count is missing."""
        train, val, dropped = books["train"], books["val"], books["dropped"]
        return cls(  # by position, for speed: a daemon parses 50,000 of them at its start
            books["rows"],
            books["documents"],
            books["chars"],
            int(books["tokens"]),
            train["documents"],
            int(train["tokens"]),
            val["documents"],
            int(val["tokens"]),
            None if dropped is None else tuple((sys.intern(why), int(rows)) for why, rows in dropped.items()),
        )

    @property
    def is_imported(self) -> bool:
        """Whether the set was imported as tokens, so that its source's rows were never read."""
        return self.rows is None

    def of(self, split: str) -> tuple[int | None, int]:
        """Returns documents and tokens of a split."""
        if split == "train":
            return self.train_documents, self.train_tokens
        return self.val_documents, self.val_tokens

    @classmethod
    def summed(cls, counts: Mapping[str, int], dropped: Mapping[str, int]) -> Books:
        """Returns the books with these counts, one for each name in COUNTED; the other fields are sums."""
        documents = counts["train_documents"] + counts["val_documents"]
        tokens = counts["train_tokens"] + counts["val_tokens"]
        drops = tuple(sorted(dropped.items()))
        return cls(
            documents=documents, tokens=tokens, dropped=drops, **{name: counts[name] for name in COUNTED}
        )

    def flaw(self) -> str:
        """Returns why these counts cannot be true; empty where they balance."""
        dropped = [rows for _, rows in self.dropped or ()]
        documents = [self.documents, self.train_documents, self.val_documents]
        tokens = [self.tokens, self.train_tokens, self.val_tokens]
        for count in (self.rows, self.chars, *tokens, *documents, *dropped):
            if count is not None and (type(count) is not int or count < 0):
                return f"{count!r} is no count"
        unknown = [self.rows, self.chars, self.dropped].count(None)
        counted = [each for each in documents if each is not None]
        is_summed = len(counted) == 3 and counted[0] == counted[1] + counted[2]
        if not is_summed and (counted or unknown != 3):
            return "documents are not the sum of train and val"
        if unknown not in (0, 3) or self.tokens != self.train_tokens + self.val_tokens:
            return "tokens are not the sum of train and val"
        if self.rows is not None and self.rows != counted[0] + sum(dropped):
            return f"{self.rows} rows are not {counted[0]} documents + {sum(dropped)} dropped"
        return ""

    def to_mapping(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "documents": self.documents,
            "dropped": None if self.dropped is None else dict(self.dropped),
            "chars": self.chars,
            "tokens": self.tokens,
            "train": {"documents": self.train_documents, "tokens": self.train_tokens},
            "val": {"documents": self.val_documents, "tokens": self.val_tokens},
        }


def tokens_of(books: Books | None, split: str) -> int:
    """Returns the tokens of a split; 0 without books."""
    return 0 if books is None else books.of(split)[1]


SourceState = Literal[
    "seen", "staged", "building", "proven", "synced", "released", "quarantined", "duplicate"
]
OPEN: tuple[SourceState, ...] = ("seen", "staged", "building")
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
KEY16 = 16  # digits of a shard set's key: the name of its directory


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
    imported: bool = False  # an earlier version imported the set as tokens: no file, no receipt
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
    def key16(self) -> str:
        """The name of its shard set's directory; empty before it has a set."""
        return (self.key or "")[:KEY16]

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

    @property
    def former_path(self) -> str:
        """The path under which its content keeps a record once its file has another content."""
        return f"{self.path}@{self.sha256[:FORMER_DIGITS]}"

    def renewed(self, *, size: int, sha256: str, reason: str | None = None) -> Source:
        """Returns this source in its first state, for the given content."""
        formers = self.formers
        if self.state in PUBLISHED and sha256 != self.sha256:
            formers = (*(one for one in formers if one[0] != self.sha256), (self.sha256, self.size))
        fresh = Source(self.dataset, self.path, size, sha256, reason=reason)
        return replace(fresh, imported=self.imported, former=self.former, formers=formers)


def read_source(layout: StateLayout, dataset: str, path: str) -> Source | None:
    """Returns the source of one path; None where it is missing or damaged (the loop sets it aside)."""
    record = read_whole(layout.source(dataset, path))
    return None if record is None else Source.from_record(record)


def read_sources(layout: StateLayout, dataset: str, damaged: Damaged = ignore) -> dict[str, Source]:
    """Returns every source of the dataset by path; damaged records are left out and passed to `damaged`."""
    return read_records(layout.sources, dataset, Source.from_record, damaged)


def write_source(layout: StateLayout, source: Source) -> None:
    """Writes the source record durably, under the record name of its path."""
    write_record(layout.source(source.dataset, source.path), source.to_record())
