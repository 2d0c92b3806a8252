"""Parquet in many styles, and damage to it by a seed: where disks, cables and people do it."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from support.parquet import SCHEMA, rows_of

ROWS, ROW_GROUP = 90, 30

# Three of ten in page bodies of the text column, where nothing but a checksum may tell.
KINDS = (
    *("text page", "text page", "text page", "dictionary", "page header"),
    *("footer", "truncation", "zeroed block", "swapped blocks", "inserted bytes"),
)
SAME_SIZE = frozenset(KINDS) - {"truncation", "inserted bytes"}

# When the file is damaged: before anybody saw it, after its receipt was written, or while the daemons work.
MOMENTS = ("before", "before", "before", "before", "before", "after", "after", "after", "late", "late")


@dataclass(frozen=True)
class Style:
    """How the file is written."""

    compression: str
    encoding: str
    checksum: bool
    version: str  # of the data pages

    def __str__(self) -> str:
        return f"{self.compression}, {self.encoding}, {'checksums' if self.checksum else 'no checksums'}"


# In this order for damage to the text's pages, so that few already have what tells most of each other.
STYLES = tuple(
    Style(compression, encoding, checksum, version)
    for compression in ("none", "snappy", "zstd")
    for encoding, version in (("plain", "1.0"), ("dictionary", "1.0"), ("delta", "2.0"))
    for checksum in (True, False)
)


@dataclass(frozen=True)
class Damage:
    """One file's fate; `silent` damage leaves the time of its last change as it was."""

    number: int
    style: Style
    kind: str
    moment: str
    silent: bool

    @property
    def name(self) -> str:
        return f"damaged-{self.number:04d}.parquet"


def plan_damage(count: int, seed: int) -> list[Damage]:
    """So many fates: every kind and moment gets its share of any ten, or hundred, in a row."""
    rng = random.Random(seed)
    in_order = itertools.cycle(STYLES)
    planned = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        moment = MOMENTS[(number // len(KINDS) + number) % len(MOMENTS)]
        silent = kind in SAME_SIZE and rng.random() < 0.5
        style = next(in_order) if kind == "text page" else rng.choice(STYLES)
        planned.append(Damage(number, style, kind, moment, silent))
    return planned


def write_styled(path: Path, style: Style, seed: int) -> bytes:
    """A FineWeb-like file in this style; its bytes."""
    dictionary = ["dump", "language", "date"] + ["text"] * (style.encoding == "dictionary")
    plain = "DELTA_BYTE_ARRAY" if style.encoding == "delta" else "PLAIN"
    pq.write_table(
        pa.Table.from_pylist(rows_of(ROWS, seed), schema=SCHEMA),
        path,
        row_group_size=ROW_GROUP,
        compression=style.compression,
        use_dictionary=dictionary,
        column_encoding=None if "text" in dictionary else {"text": plain},
        data_page_version=style.version,
        data_page_size=4096,
        write_statistics=False,
        write_page_checksum=style.checksum,
    )
    return path.read_bytes()


def damaged(content: bytes, damage: Damage, seed: int) -> bytes:
    """The content after its fate; never the same as before."""
    rng = random.Random(f"{seed}-{damage.number}")
    for _ in range(100):
        spoiled = _once(bytearray(content), damage.kind, rng)
        if spoiled != content:
            return spoiled
    raise AssertionError(f"{damage}: nothing changed")


def apply(path: Path, content: bytes, *, silent: bool) -> None:
    """Give the file these bytes in place, as whoever damages it does."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
    if silent:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _once(data: bytearray, kind: str, rng: random.Random) -> bytes:
    size = len(data)
    match kind:
        case "text page" | "dictionary" | "page header":
            _flip(data, *_part_of_text(bytes(data), kind, rng), rng)
        case "footer":
            length = int.from_bytes(data[-8:-4], "little")
            _flip(data, size - 8 - length, size, rng)
        case "truncation":
            del data[rng.randrange(size) :]
        case "zeroed block":
            start = rng.randrange(size)
            end = min(size, start + rng.choice((16, 512, 4096)))
            data[start:end] = bytes(end - start)
        case "swapped blocks":
            length = rng.choice((16, 512))
            one, other = sorted(rng.randrange(size - length) for _ in range(2))
            if one + length <= other:
                data[one : one + length], data[other : other + length] = (
                    data[other : other + length],
                    data[one : one + length],
                )
        case "inserted bytes":
            at = rng.randrange(size)
            data[at:at] = rng.randbytes(rng.choice((1, 7, 512)))
    return bytes(data)


def _flip(data: bytearray, start: int, end: int, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 3, 16))):
        data[rng.randrange(start, end)] ^= 1 << rng.randrange(8)


def _part_of_text(content: bytes, kind: str, rng: random.Random) -> tuple[int, int]:
    """Where one row group's text has the body of a data page, its dictionary's, or the head of a page."""
    footer = pq.ParquetFile(pa.BufferReader(content)).metadata
    group = footer.row_group(rng.randrange(footer.num_row_groups))
    chunks = [group.column(number) for number in range(group.num_columns)]
    text = next(each for each in chunks if each.path_in_schema == "text")
    first = text.dictionary_page_offset or text.data_page_offset
    pages = list(_pages(content, first, first + text.total_compressed_size))
    if kind == "page header":
        head, body, _ = rng.choice(pages)
        return head, body
    dictionaries, bodies = (
        [page for page in pages if (page[0] < text.data_page_offset) is wanted] for wanted in (True, False)
    )
    _, body, end = rng.choice(dictionaries if kind == "dictionary" and dictionaries else bodies)
    return body, end


def _pages(content: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each page of a column chunk: where its header, its body and the next one begin."""
    while start < end:
        sizes, body = _struct(content, start)
        yield start, body, body + sizes[3]  # compressed_page_size
        start = body + sizes[3]


def _struct(data: bytes, at: int) -> tuple[dict[int, int], int]:
    """A thrift struct's whole numbers by field, and where it ends."""
    numbers: dict[int, int] = {}
    field = 0
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        assert step, "fields of a page header are close together"
        field, at = field + step, at + 1
        if kind == 12:
            _, at = _struct(data, at)
        elif kind in (4, 5, 6):
            zigzag, at = _varint(data, at)
            numbers[field] = zigzag >> 1 if not zigzag & 1 else -(zigzag + 1) // 2
        else:
            assert kind in (1, 2), f"a page header without statistics has no field of type {kind}"
    return numbers, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at
