"""A source's files sorted by what is to be done about each: here, to be hashed, to be fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.cli.data.list_source import Listed
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes
from stoker.corpus.fetch.landing import PARTS, PartRecord
from stoker.corpus.fetch.selection import VOUCHED, Wanted, speaks_of
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.source.arrivals import file_of
from stoker.corpus.source.folder import FileSeen
from stoker.store.names import inside, record_name
from stoker.store.record import RecordDamaged, read_record


@dataclass
class Pile:
    """Files of one kind: how many, the bytes that are known of them, and how many sizes are not."""

    files: int = 0
    bytes: int = 0
    unsized: int = 0

    def add(self, size: int | None) -> None:
        """One more; None where only the server knows its size."""
        self.files += 1
        self.bytes += size or 0
        self.unsized += size is None

    def told(self) -> str:
        """For a person."""
        more = f" and {self.unsized:,} of unknown size" if self.unsized else ""
        return f"{self.files:,} file{'s' * (self.files != 1)}, {format_bytes(self.bytes)}{more}"


@dataclass
class Survey:
    """A source's files by what is to be done; `saved` are bytes of unfinished ones that need not come again.

    `open` are the first that have to come, `to_read` the first that lie here and were never hashed.
    """

    all: Pile = field(default_factory=Pile)
    here: Pile = field(default_factory=Pile)
    released: Pile = field(default_factory=Pile)
    given_up: Pile = field(default_factory=Pile)
    to_hash: Pile = field(default_factory=Pile)
    to_fetch: Pile = field(default_factory=Pile)
    saved: int = 0
    open: list[Wanted] = field(default_factory=list)
    to_read: list[FileSeen] = field(default_factory=list)


def survey_folder(pipeline: Pipeline, listed: Listed, receipts: Mapping[str, Receipt]) -> Survey:
    """Sort a folder's files: vouched for as they are now, or to be hashed."""
    survey, root = Survey(), str(pipeline.source_root)
    for file in listed.seen:
        survey.all.add(file.size)
        receipt = receipts.get(file.path)
        same = receipt is not None and receipt.etag == file.etag and receipt.file == file_of(root, file.path)
        if same and receipt is not None and receipt.usable:
            survey.here.add(file.size)
            continue
        survey.to_hash.add(file.size)
        if len(survey.to_read) < pipeline.download.files_at_once:
            survey.to_read.append(file)
    return survey


def survey_remote(pipeline: Pipeline, listed: Listed, receipts: Mapping[str, Receipt]) -> Survey:
    """Sort a fetched source's files by their receipts, and by what lies in the landing without one."""
    survey, landing = Survey(), pipeline.source_root
    for wanted in listed.wanted:
        receipt = receipts.get(wanted.path)
        size = receipt.size if wanted.size is None and receipt is not None else wanted.size
        survey.all.add(size)
        if receipt is not None and receipt.state in VOUCHED and speaks_of(receipt, wanted):
            piles = {"verified": survey.here, "unproven": survey.here, "given_up": survey.given_up}
            piles.get(receipt.state, survey.released).add(size)
            continue
        lies = _size(inside(landing, wanted.path))
        if lies is not None and wanted.size in (None, lies):
            survey.to_hash.add(lies)
            continue
        survey.to_fetch.add(wanted.size)
        survey.saved += _kept(landing, pipeline.dataset.name, wanted)
        if len(survey.open) < pipeline.download.files_at_once:
            survey.open.append(wanted)
    return survey


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _kept(landing: Path, dataset: str, wanted: Wanted) -> int:
    """The durable bytes of an unfinished file, as far as its record can be believed."""
    file = landing / PARTS / f"{record_name(dataset, wanted.path)}.json"
    try:
        return PartRecord.from_record(read_record(file)).offset
    except (FileNotFoundError, RecordDamaged, KeyError, TypeError, ValueError):
        return 0
