"""The manifest of a shard set: its source and build, its files with hashes, and its books."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from stoker.corpus.records.sources import SPLITS, Books
from stoker.shards.format.identity import dtype_for, set_key
from stoker.store.errors import DataError
from stoker.store.files import canonical_json, write_atomic
from stoker.store.record import parse_json, require_version

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
BUILD_NOTE = "build.json"
KINDS = ("bin", "idx", "row")  # a shard's files: tokens, document ends, row numbers in the source
IMPORTED_KINDS = ("bin", "idx")
OFFSET_BYTES = 8  # an entry of .idx or .row: uint64, little-endian
TOKEN_BYTES = {"uint16": 2, "uint32": 4}

_HEX64 = re.compile(r"[0-9a-f]{64}")
_DATA_FILE = re.compile(r"(train|val)-(\d{5,})\.(bin|idx|row)")


class ManifestInvalid(DataError):
    """Raised for a manifest that does not parse, contradicts itself, or has unbalanced books."""


EndOfText = Literal["after", "before"]  # of each document in its stream


@dataclass(frozen=True)
class DataFile:
    """One data file: size in bytes and hash; a .bin has tokens and, where known, documents (else None)."""

    size: int
    sha256: str
    tokens: int | None = None
    documents: int | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the manifest's entry: without unknown counts."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Manifest:
    """A shard set as its manifest describes it.

    An imported set has no row numbers; where its documents are not known, its .idx has one entry for each
    shard.
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
    books: Books
    files: Mapping[str, DataFile]  # the data files by name
    end_of_text: EndOfText | None = "after"  # its place in each document; None where documents are not known

    @classmethod
    def parse(cls, data: bytes, where: Path | str = MANIFEST) -> Manifest:
        """Parses a manifest; raises ManifestInvalid unless it is canonical and free of contradictions.

        Raises UnknownFormat naming `where` for another version: the caller may trust that only if the file's
        checksum is right.
        """
        try:
            body = parse_json(data)
            require_version(body, where)
            source, tokenizer = body["source"], body["tokenizer"]
            manifest = cls(
                dataset=str(body["dataset"]),
                key=_hex64(body["key"]),
                build_id=_hex64(body["build_id"]),
                source_size=_count(source["size"]),
                source_sha256=_hex64(source["sha256"]),
                tokenizer_sha256=_hex64(tokenizer["sha256"]),
                vocab_size=_count(tokenizer["vocab_size"]),
                eot=_count(tokenizer["eot"]),
                dtype=str(body["dtype"]),
                books=Books.from_mapping(body["books"]),
                files={str(name): _data_file(entry) for name, entry in body["files"].items()},
                end_of_text=body["imported"]["end_of_text"] if "imported" in body else "after",
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ManifestInvalid(f"does not parse: {error!r}") from error
        if manifest.to_bytes() != data:
            raise ManifestInvalid("is not in canonical form")
        manifest._check()
        return manifest

    def to_bytes(self) -> bytes:
        """Returns the manifest's one canonical form."""
        body = {
            "v": 1,
            "dataset": self.dataset,
            "key": self.key,
            "build_id": self.build_id,
            "source": {"size": self.source_size, "sha256": self.source_sha256},
            "tokenizer": {"sha256": self.tokenizer_sha256, "vocab_size": self.vocab_size, "eot": self.eot},
            "dtype": self.dtype,
            "streams": ["tokens"],
            "books": self.books.to_mapping(),
            "files": {name: file.to_mapping() for name, file in self.files.items()},
        }
        return canonical_json(
            body | ({"imported": {"end_of_text": self.end_of_text}} if self.books.is_imported else {})
        )

    @property
    def sha256(self) -> str:
        """The sha256 of the manifest's bytes, by which plan entries name it."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def bins(self, split: str) -> list[tuple[str, DataFile]]:
        """Returns the split's token files in order."""
        names = [name for name in self.files if name.startswith(f"{split}-") and name.endswith(".bin")]
        return [(name, self.files[name]) for name in sorted(names, key=_shard_number)]

    def _check(self) -> None:
        if flaw := self.books.flaw():
            raise ManifestInvalid(f"books: {flaw}")
        if self.key != set_key(self.source_sha256, self.build_id):
            raise ManifestInvalid("key is not that of its source and build id")
        if self.dtype != dtype_for(self.vocab_size) or self.eot >= self.vocab_size:
            raise ManifestInvalid(
                f"{self.dtype} or end-of-text {self.eot} does not fit {self.vocab_size} ids"
            )
        wheres = (*get_args(EndOfText), None)
        if self.end_of_text not in wheres or bool(self.end_of_text) != (self.books.documents is not None):
            raise ManifestInvalid(f"books and end_of_text {self.end_of_text!r} do not fit each other")
        expected = {name for split in SPLITS for name in self._check_split(split)}
        if set(self.files) != expected:
            raise ManifestInvalid(f"{sorted(set(self.files) - expected)} are no data files")

    def _check_split(self, split: str) -> list[str]:
        """Checks a split's files; returns their names."""
        bins, found = self.bins(split), []
        kinds = IMPORTED_KINDS if self.books.is_imported else KINDS
        for number, (name, file) in enumerate(bins):
            names = [data_name(split, number, kind) for kind in kinds]
            if name != names[0] or not set(names) <= set(self.files):
                raise ManifestInvalid(
                    f"files of {split} are not numbered without a gap, .bin beside .idx and .row"
                )
            if file.tokens is None or (file.documents is not None) != bool(self.end_of_text):
                raise ManifestInvalid(f"{name} says no tokens or documents")
            if file.size != file.tokens * TOKEN_BYTES[self.dtype]:
                raise ManifestInvalid(f"{name}: {file.size} bytes cannot hold {file.tokens} tokens")
            ends = min(1, file.tokens) if file.documents is None else file.documents
            for other in names[1:]:
                if self.files[other].size != ends * OFFSET_BYTES:
                    raise ManifestInvalid(f"{other}: size does not fit {ends} documents")
            found += names
        tokens = sum(file.tokens or 0 for _, file in bins)
        documents = sum(file.documents or 0 for _, file in bins) if self.end_of_text else None
        counted = self.books.of(split)
        if not bins or (documents, tokens) != counted:
            raise ManifestInvalid(
                f"files of {split} hold {documents} documents and {tokens} tokens, the books say "
                f"{counted[0]} and {counted[1]}"
            )
        return found


def beside(name: str, kind: str) -> str:
    """Returns the name of the same shard's file of another kind."""
    return f"{name.rpartition('.')[0]}.{kind}"


def _shard_number(name: str) -> int:
    match = _DATA_FILE.fullmatch(name)
    if match is None:
        raise ManifestInvalid(f"{name!r} is no name of a data file")
    return int(match[2])


def data_name(split: str, number: int, kind: str) -> str:
    """Returns the name of a split's data file; `kind` is one of KINDS."""
    return f"{split}-{number:05d}.{kind}"


def sums_text(hashes: Mapping[str, str]) -> bytes:
    """Returns SHA256SUMS for `sha256sum -c`: every name with its hash, sorted by name."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items())).encode()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes the manifest and then the sums, durably; raises ManifestInvalid, StorageError."""
    data = manifest.to_bytes()
    Manifest.parse(data)  # a manifest that a reader would refuse is not written
    write_atomic(directory / MANIFEST, data)
    hashes = {name: file.sha256 for name, file in manifest.files.items()} | {MANIFEST: manifest.sha256}
    write_atomic(directory / SUMS, sums_text(hashes))


def parse_sums(data: bytes) -> dict[str, str]:
    """Returns the hashes in SHA256SUMS by name; raises ManifestInvalid unless `sums_text` wrote it."""
    try:
        pairs = [line.split("  ", 1) for line in data.decode().splitlines()]
        hashes = {name: _hex64(sha256) for sha256, name in pairs}
    except ValueError as error:
        raise ManifestInvalid(f"does not parse: {error}") from error
    if sums_text(hashes) != data:
        raise ManifestInvalid("is not sorted by name with each name once")
    return hashes


def _data_file(entry: Mapping[str, Any]) -> DataFile:
    counts = [None if entry.get(name) is None else _count(entry[name]) for name in ("tokens", "documents")]
    return DataFile(_count(entry["size"]), _hex64(entry["sha256"]), *counts)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _hex64(value: Any) -> str:
    if not isinstance(value, str) or not _HEX64.fullmatch(value):
        raise ValueError(f"{value!r} is no sha256")
    return value
