"""The manifest of a shard set: what it is made of, what its files are, and its books."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from stoker.shards.format.identity import dtype_for, set_key
from stoker.store.errors import DataError
from stoker.store.files import canonical_json, write_atomic
from stoker.store.parsing import parse_json, require_version

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
BUILD_NOTE = "build.json"
SPLITS = ("train", "val")
KINDS = ("bin", "idx", "row")  # a shard's files: tokens, document ends, row numbers in the source
IMPORTED_KINDS = ("bin", "idx")
OFFSET_BYTES = 8  # an .idx entry: uint64, little-endian
ROW_BYTES = 8  # a .row entry: uint64, little-endian
TOKEN_BYTES = {"uint16": 2, "uint32": 4}

_HEX64 = re.compile(r"[0-9a-f]{64}")
_DATA_FILE = re.compile(r"(train|val)-(\d{5,})\.(bin|idx|row)")


class ManifestInvalid(DataError):
    """The manifest does not parse, contradicts itself, or its books do not balance."""


@dataclass
class Books:
    """What became of a source's rows; `chars` are code points of kept documents.

    `tokens` count the end-of-text of each document; `dropped` counts rows by the filter that dropped them.
    """

    rows: int = 0
    chars: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Books:
        """Read and balance them; raises ManifestInvalid."""
        try:
            books = cls(
                rows=_count(values["rows"]),
                chars=_count(values["chars"]),
                dropped={str(reason): _count(rows) for reason, rows in values["dropped"].items()},
                documents={split: _count(values[split]["documents"]) for split in SPLITS},
                tokens={split: _count(values[split]["tokens"]) for split in SPLITS},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ManifestInvalid(f"books: {error!r}") from error
        if books.to_mapping() != values:
            raise ManifestInvalid("books: documents or tokens are not the sum of train and val")
        dropped = sum(books.dropped.values())
        documents = sum(books.documents.values())
        if books.rows != documents + dropped:
            raise ManifestInvalid(
                f"books: {books.rows} rows are not {documents} documents + {dropped} dropped"
            )
        return books

    def to_mapping(self) -> dict[str, Any]:
        """The books as they stand in a manifest."""
        return {
            "rows": self.rows,
            "documents": sum(self.documents.values()),
            "dropped": {reason: rows for reason, rows in sorted(self.dropped.items()) if rows},
            "chars": self.chars,
            "tokens": sum(self.tokens.values()),
            **{split: {"documents": self.documents[split], "tokens": self.tokens[split]} for split in SPLITS},
        }


EndOfText = Literal["after", "before"]  # of each document in its stream


@dataclass(frozen=True)
class ImportedBooks:
    """What is known of tokens that were taken over: rows, dropped and chars never are.

    `documents` are counted where end-of-text stands between them, else None in both splits.
    """

    documents: Mapping[str, int | None]
    tokens: Mapping[str, int]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ImportedBooks:
        """Read and balance them; raises ManifestInvalid."""
        try:
            books = cls(
                documents={split: _count_or_none(values[split]["documents"]) for split in SPLITS},
                tokens={split: _count(values[split]["tokens"]) for split in SPLITS},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ManifestInvalid(f"books: {error!r}") from error
        if books.to_mapping() != values or len({count is None for count in books.documents.values()}) != 1:
            raise ManifestInvalid("books: documents or tokens are not the sum of train and val")
        return books

    def to_mapping(self) -> dict[str, Any]:
        """The books as they stand in a manifest: null is not known."""
        counted = [count for count in self.documents.values() if count is not None]
        return {
            "rows": None,
            "documents": sum(counted) if len(counted) == len(SPLITS) else None,
            "dropped": None,
            "chars": None,
            "tokens": sum(self.tokens.values()),
            **{split: {"documents": self.documents[split], "tokens": self.tokens[split]} for split in SPLITS},
        }


def parse_books(values: Mapping[str, Any]) -> Books | ImportedBooks:
    """The books of a manifest or a record; raises ManifestInvalid where they do not balance."""
    imported = isinstance(values, Mapping) and "rows" in values and values["rows"] is None
    return (ImportedBooks if imported else Books).from_mapping(values)


@dataclass(frozen=True)
class Imported:
    """That a set's tokens were taken over, and where in them end-of-text stands; None: in no place."""

    end_of_text: EndOfText | None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Imported:
        """Read it; raises ValueError, KeyError or TypeError."""
        end_of_text = values["end_of_text"]
        if end_of_text is not None and end_of_text not in get_args(EndOfText):
            raise ValueError(f"end_of_text {end_of_text!r}")
        return cls(cast("EndOfText | None", end_of_text))


@dataclass(frozen=True)
class DataFile:
    """One data file: size in bytes, hash; tokens and, where known, documents of a .bin (else None)."""

    size: int
    sha256: str
    tokens: int | None = None
    documents: int | None = None


@dataclass(frozen=True)
class Manifest:
    """A shard set as its manifest tells it; `files` are the data files by name.

    One that was imported has no row numbers, and where documents are not known one entry a shard in its .idx.
    """

    dataset: str
    key: str
    build_id: str
    source_size: int
    source_sha256: str
    tokenizer_sha256: str
    vocab_size: int
    eot: int
    dtype: str
    books: Books | ImportedBooks
    files: Mapping[str, DataFile]
    imported: Imported | None = None

    @classmethod
    def parse(cls, data: bytes, where: Path | str = MANIFEST) -> Manifest:
        """Read a manifest; raises ManifestInvalid unless it is canonical and agrees in itself.

        Raises UnknownFormat naming `where` for another version: true only of bytes whose sum is right.
        """
        try:
            body = parse_json(data)
            require_version(body, where)
            manifest = cls(
                dataset=str(body["dataset"]),
                key=_hex64(body["key"]),
                build_id=_hex64(body["build_id"]),
                source_size=_count(body["source"]["size"]),
                source_sha256=_hex64(body["source"]["sha256"]),
                tokenizer_sha256=_hex64(body["tokenizer"]["sha256"]),
                vocab_size=_count(body["tokenizer"]["vocab_size"]),
                eot=_count(body["tokenizer"]["eot"]),
                dtype=str(body["dtype"]),
                books=parse_books(body["books"]),
                files={str(name): _data_file(entry) for name, entry in body["files"].items()},
                imported=Imported.from_mapping(body["imported"]) if "imported" in body else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ManifestInvalid(f"does not parse: {error!r}") from error
        if manifest.to_bytes() != data:
            raise ManifestInvalid("is not in canonical form")
        manifest._check()
        return manifest

    def to_bytes(self) -> bytes:
        """The manifest's one canonical form."""
        return canonical_json(
            {
                "v": 1,
                "dataset": self.dataset,
                "key": self.key,
                "build_id": self.build_id,
                "source": {"size": self.source_size, "sha256": self.source_sha256},
                "tokenizer": {
                    "sha256": self.tokenizer_sha256,
                    "vocab_size": self.vocab_size,
                    "eot": self.eot,
                },
                "dtype": self.dtype,
                "streams": ["tokens"],
                "books": self.books.to_mapping(),
                "files": {name: _entry(file) for name, file in self.files.items()},
                **({} if self.imported is None else {"imported": {"end_of_text": self.imported.end_of_text}}),
            }
        )

    @property
    def sha256(self) -> str:
        """The sha256 of the manifest's bytes, by which plan entries name it."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def _check(self) -> None:
        if self.key != set_key(self.source_sha256, self.build_id):
            raise ManifestInvalid("key is not that of its source and build id")
        if self.dtype != dtype_for(self.vocab_size) or self.eot >= self.vocab_size:
            raise ManifestInvalid(
                f"{self.dtype} or end-of-text {self.eot} does not fit {self.vocab_size} ids"
            )
        if isinstance(self.books, Books) != (self.imported is None):
            raise ManifestInvalid("books and `imported` do not fit each other")
        counted = self.imported is None or self.imported.end_of_text is not None
        expected: set[str] = set()
        for split in SPLITS:
            bins = self.bins(split)
            for number, (name, file) in enumerate(bins):
                names = [data_name(split, number, kind) for kind in self.kinds]
                if name != names[0] or not set(names) <= set(self.files):
                    raise ManifestInvalid(
                        f"files of {split} are not numbered without a gap, .bin beside .idx and .row"
                    )
                if file.tokens is None or (file.documents is None) == counted:
                    raise ManifestInvalid(f"{name} says no tokens or documents")
                if file.size != file.tokens * TOKEN_BYTES[self.dtype]:
                    raise ManifestInvalid(f"{name}: {file.size} bytes cannot hold {file.tokens} tokens")
                ends = file.documents if file.documents is not None else min(1, file.tokens)
                for other, width in zip(names[1:], (OFFSET_BYTES, ROW_BYTES), strict=False):
                    if self.files[other].size != ends * width:
                        raise ManifestInvalid(f"{other}: size does not fit {ends} documents")
                expected |= set(names)
            tokens = sum(file.tokens or 0 for _, file in bins)
            documents = sum(file.documents or 0 for _, file in bins) if counted else None
            if not bins or (documents, tokens) != (self.books.documents[split], self.books.tokens[split]):
                raise ManifestInvalid(
                    f"files of {split} hold {documents} documents and {tokens} tokens, the books say "
                    f"{self.books.documents[split]} and {self.books.tokens[split]}"
                )
        if set(self.files) != expected:
            raise ManifestInvalid(f"{sorted(set(self.files) - expected)} are no data files")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The files of a shard: row numbers are not known of what was imported."""
        return KINDS if self.imported is None else IMPORTED_KINDS

    @property
    def documents_known(self) -> bool:
        """Whether its .idx files hold documents; where they are not known they have one entry a file."""
        return self.imported is None or self.imported.end_of_text is not None

    def bins(self, split: str) -> list[tuple[str, DataFile]]:
        """The split's token files in order."""
        names = [name for name in self.files if name.startswith(f"{split}-") and name.endswith(".bin")]
        return [(name, self.files[name]) for name in sorted(names, key=shard_number)]


def beside(name: str, kind: str) -> str:
    """The name of the file of another kind that belongs to the same shard."""
    return f"{name.rpartition('.')[0]}.{kind}"


def shard_number(name: str) -> int:
    """The number in a data file's name; raises ManifestInvalid for a name that is none."""
    match = _DATA_FILE.fullmatch(name)
    if match is None:
        raise ManifestInvalid(f"{name!r} is no name of a data file")
    return int(match[2])


def data_name(split: str, number: int, kind: str) -> str:
    """The name of a split's data file: kind is one of KINDS."""
    return f"{split}-{number:05d}.{kind}"


def sums_text(hashes: Mapping[str, str]) -> bytes:
    """SHA256SUMS for `sha256sum -c`: every name with its hash, sorted by name."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items())).encode()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write manifest and sums, durably and the sums last; raises ManifestInvalid, StorageError."""
    data = manifest.to_bytes()
    Manifest.parse(data)  # what a reader would refuse is not written
    write_atomic(directory / MANIFEST, data)
    hashes = {name: file.sha256 for name, file in manifest.files.items()} | {MANIFEST: manifest.sha256}
    write_atomic(directory / SUMS, sums_text(hashes))


def parse_sums(data: bytes) -> dict[str, str]:
    """Names and hashes of SHA256SUMS; raises ManifestInvalid unless it is exactly what `sums_text` writes."""
    try:
        pairs = [line.split("  ", 1) for line in data.decode().splitlines()]
        hashes = {name: _hex64(sha256) for sha256, name in pairs}
    except ValueError as error:
        raise ManifestInvalid(f"does not parse: {error}") from error
    if sums_text(hashes) != data:
        raise ManifestInvalid("is not sorted by name with each name once")
    return hashes


def _entry(file: DataFile) -> dict[str, Any]:
    entry: dict[str, Any] = {"size": file.size, "sha256": file.sha256}
    if file.tokens is not None:
        entry["tokens"] = file.tokens
    if file.documents is not None:
        entry["documents"] = file.documents
    return entry


def _data_file(entry: Mapping[str, Any]) -> DataFile:
    told = (_count_or_none(entry.get(name)) for name in ("tokens", "documents"))
    return DataFile(_count(entry["size"]), _hex64(entry["sha256"]), *told)


def _count_or_none(value: Any) -> int | None:
    return None if value is None else _count(value)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _hex64(value: Any) -> str:
    if not isinstance(value, str) or not _HEX64.fullmatch(value):
        raise ValueError(f"{value!r} is no sha256")
    return value
