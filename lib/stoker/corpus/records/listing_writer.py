"""The listing as its one writer keeps it: the files on disk alone, for 50,000 of them are megabytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from stoker.corpus.records.listing import Listing
from stoker.store.errors import storage_errors
from stoker.store.files import canonical_json, write_atomic
from stoker.store.layout import StateLayout
from stoker.store.parsing import parse_each, parse_json
from stoker.store.record import SUM_HEX, RecordDamaged, read_record

_STRETCH = 1000  # files that are put into JSON at a time
_BEFORE, _AFTER, _VERSION = b',"files":[', b"],", b',"v":1}'
_SUM = b',"sum":"'


@dataclass(frozen=True, slots=True)
class ListingHead:
    """What is in a listing but for its files; `sum`, the record's, tells two of them apart."""

    complete: bool
    revision: str
    origin: str
    sum: str


class ListingBook:
    """Reads and writes the record; `head` is None while there is none, or only a damaged one."""

    def __init__(self, layout: StateLayout, dataset: str) -> None:
        self._file, self._dataset = layout.listing(dataset), dataset
        found = self._read()
        self.head = None if found is None else found[0]

    def files(self) -> Iterator[tuple[str, int]]:
        """The files that were written, with their sizes."""
        if (found := self._read()) is None:
            return
        try:
            for path, size in parse_each(found[1]):
                yield str(path), int(size)
        except (ValueError, TypeError) as error:
            raise RecordDamaged(
                f"{self._file}: {error}; remove it: the next look at the source writes it"
            ) from error

    def write(
        self, files: Iterable[tuple[str, int]], *, complete: bool, revision: str, origin: str = ""
    ) -> bool:
        """Make it durable where it is another than before; whether it was."""
        pieces = list(_pieces(self._dataset, files, complete=complete, revision=revision, origin=origin))
        found = _sum(pieces)
        if self.head is not None and self.head.sum == found:
            return False
        data = b"".join((*pieces, _SUM, found.encode(), b'"', _VERSION, b"\n"))
        pieces.clear()
        write_atomic(self._file, data)
        self.head = ListingHead(complete, revision, origin, found)
        return True

    def _read(self) -> tuple[ListingHead, str] | None:
        """The head, and the files as they are written."""
        try:
            with storage_errors("read", self._file):
                data = self._file.read_bytes()
        except FileNotFoundError:
            return None
        begin, end, sum_at = data.find(_BEFORE), data.rfind(_AFTER + b'"'), data.rfind(_SUM)
        found = data[sum_at + len(_SUM) : sum_at + len(_SUM) + SUM_HEX].decode("ascii", "replace")
        if (
            not 0 < begin < end < sum_at
            or not data.endswith(_VERSION + b"\n")
            or _sum([memoryview(data)[:sum_at]]) != found
        ):
            return self._read_otherwise()
        # A quotation mark within a text is never bare, so that these were the record's own.
        try:
            about = parse_json(data[:begin] + b"," + data[end + len(_AFTER) : sum_at] + b"}")
        except ValueError:
            return self._read_otherwise()
        files = data[begin + len(_BEFORE) : end].decode("utf-8", "surrogatepass")
        return _head(about, found), files

    def _read_otherwise(self) -> tuple[ListingHead, str] | None:
        """Of a record in another than the canonical form, or a damaged one."""
        try:
            record = read_record(self._file)
        except (FileNotFoundError, RecordDamaged):
            return None
        files = canonical_json(Listing.from_record(record).to_record()["files"]).decode()
        return _head(record, ""), files[1:-1]


def _head(about: dict[str, Any], found: str) -> ListingHead:
    origin = str(about.get("origin", ""))
    return ListingHead(bool(about["complete"]), str(about["revision"]), origin, found)


def _pieces(
    dataset: str, files: Iterable[tuple[str, int]], *, complete: bool, revision: str, origin: str
) -> Iterator[bytes]:
    """The record in its canonical form, without its sum and its end."""
    yield canonical_json({"complete": complete, "dataset": dataset})[:-1] + _BEFORE
    left, comma = iter(files), b""
    while stretch := list(islice(left, _STRETCH)):
        yield comma + canonical_json(stretch)[1:-1]
        comma = b","
    origins = {"origin": origin} if origin else {}
    yield _AFTER + canonical_json({**origins, "revision": revision})[1:-1]


def _sum(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in (*pieces, _VERSION):
        digest.update(piece)
    return digest.hexdigest()[:SUM_HEX]
