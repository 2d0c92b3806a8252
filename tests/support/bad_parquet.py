"""Parquet files as no writer makes them: footers spelled out by hand, encryption, damage by a seed."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet import encryption

# Thrift's compact protocol: types of fields, and how numbers, lists and fields are spelled.
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12


def number(value: int) -> bytes:
    """Zigzag, then seven bits a byte."""
    return plain_number(-value * 2 - 1 if value < 0 else value * 2)


def plain_number(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(step: int, kind: int, value: bytes) -> bytes:
    """A field `step` ids after the one before."""
    return bytes([step << 4 | kind]) + value


def structs(count: int, *items: bytes) -> bytes:
    """A list that says it has `count` structs, and then has these."""
    return bytes([0xF0 | STRUCT]) + plain_number(count) + b"".join(items)


def element(name: bytes, *, children: int | None = None) -> bytes:
    """A schema element: a group with children, or an optional column of strings."""
    kind = b"" if children is not None else field(1, I32, number(6)) + field(2, I32, number(1))
    step = 1 if kind else 4
    tail = b"" if children is None else field(1, I32, number(children))
    return kind + field(step, BINARY, plain_number(len(name)) + name) + tail + b"\0"


def footer(schema: bytes, rows: int, groups: bytes) -> bytes:
    """A file's footer without its length."""
    version = field(1, I32, number(1))
    return version + field(1, LIST, schema) + field(1, I64, number(rows)) + field(1, LIST, groups) + b"\0"


TEXT_SCHEMA = structs(2, element(b"schema", children=1), element(b"text"))
CHUNK = field(2, I64, number(4)) + b"\0"


def group(columns: bytes, rows: int = 1) -> bytes:
    """A row group with this list of column chunks."""
    return field(1, LIST, columns) + field(1, I64, number(10)) + field(1, I64, number(rows)) + b"\0"


def write_footer(path: Path, content: bytes, *, claimed: int | None = None) -> Path:
    """A file that is nothing but this footer, which claims to be `claimed` bytes long."""
    length = len(content) if claimed is None else claimed
    path.write_bytes(b"PAR1" + content + length.to_bytes(4, "little") + b"PAR1")
    return path


class _NoKms(encryption.KmsClient):
    def __init__(self, _: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, _: str) -> bytes:
        return base64.b64decode(wrapped)


def write_encrypted(path: Path, columns: list[str], *, plain_footer: bool) -> Path:
    """A file with `text` and `n`, of which these columns are encrypted."""
    factory = encryption.CryptoFactory(_NoKms)
    how = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": columns}, plaintext_footer=plain_footer
    )
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    table = pa.table({"text": ["hello there"] * 50, "n": list(range(50))})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return path
