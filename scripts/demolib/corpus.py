"""Write documents as parquet in FineWeb's schema, one damaged file among them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("id", pa.string()),
        ("dump", pa.string()),
        ("url", pa.string()),
        ("date", pa.string()),
        ("file_path", pa.string()),
        ("language", pa.string()),
        ("language_score", pa.float64()),
        ("token_count", pa.int64()),
    ]
)
ROW_GROUP_ROWS = 500


def _row(where: str, text: str) -> dict[str, object]:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {
        "text": text,
        "id": f"<urn:sha256:{digest[:32]}>",
        "dump": "local",
        "url": f"file:///{where}",
        "date": "2026-01-01T00:00:00Z",
        "file_path": where,
        "language": "en",
        "language_score": 0.99,
        "token_count": max(1, len(text) // 4),
    }


def write(folder: Path, documents: list[tuple[str, str]], files: int) -> list[Path]:
    """Spread the documents over `files` parquet files with page checksums; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(files):
        table = pa.Table.from_pylist([_row(*d) for d in documents[number::files]], schema=SCHEMA)
        path = folder / f"{number // 10:03d}_{number:05d}.parquet"
        pq.write_table(table, path, row_group_size=ROW_GROUP_ROWS, write_page_checksum=True)
        paths.append(path)
    return paths


def damage(path: Path) -> int:
    """Flip 64 bytes inside a page of the text column of the last row group; returns that row group's number.

    The footer stays whole, so only a reader that decodes the pages can notice.
    """
    metadata = pq.read_metadata(path)
    group = metadata.num_row_groups - 1
    column = metadata.row_group(group).column(0)
    # The chunk begins with its dictionary page where it has one, and there the text is.
    start = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    middle = start + column.total_compressed_size // 2
    with path.open("r+b") as file:
        file.seek(middle)
        original = file.read(64)
        file.seek(middle)
        file.write(bytes(byte ^ 0xFF for byte in original))
    return int(group)
