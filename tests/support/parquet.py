"""FineWeb-like parquet of real-looking prose, seeded, and ways to spoil it. None of the project's code."""

from __future__ import annotations

import random
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
_OPENINGS = (
    "In the morning",
    "As a rule",
    "Contrary to the manual",
    "For thirty years",
    "Only once",
    "Überall",
)
_SUBJECTS = (
    "the stoker",
    "an old engine",
    "the night shift",
    "a careful ledger",
    "the harbour",
    "my neighbour's cat",
)
_VERBS = ("feeds", "remembers", "measures", "doubts", "repairs", "outlives", "hardly notices")
_OBJECTS = (
    "the fire",
    "each token",
    "a broken gauge",
    "the winter",
    "forty tons of coal",
    "the naïve plan",
    "日本語の本",
)
_ENDINGS = (".", "!", "; nobody said why.", ", and then it rains.", "… 🔥", ' ("so they say").')


def prose(rng: random.Random, sentences: int) -> str:
    """So many sentences, in paragraphs."""
    made = []
    for number in range(sentences):
        words = [rng.choice(part) for part in (_OPENINGS, _SUBJECTS, _VERBS, _OBJECTS)]
        made.append(" ".join(words) + rng.choice(_ENDINGS) + ("\n\n" if number % 5 == 4 else " "))
    return "".join(made)


def rows_of(count: int, seed: int) -> list[dict[str, object]]:
    """FineWeb rows; one text in 29 is null and one in 31 too short for any filter."""
    rng = random.Random(seed)
    rows: list[dict[str, object]] = []
    for number in range(count):
        text: str | None = prose(rng, rng.randint(1, 14))
        if number % 29 == 11:
            text = None
        elif number % 31 == 12:
            text = "short"
        rows.append(
            {
                "text": text,
                "id": f"<urn:uuid:{rng.getrandbits(128):032x}>",
                "dump": "CC-MAIN-2024-10",
                "url": f"https://www.site{rng.randrange(4000)}.example/page/{seed}/{number}",
                "date": f"2024-02-{1 + number % 28:02d}T00:00:00Z",
                "file_path": f"s3://commoncrawl/{seed}.warc.gz",
                "language": "en",
                "language_score": round(0.65 + rng.random() * 0.34, 6),
                "token_count": 0 if text is None else len(text) // 4,
            }
        )
    return rows


def write_fineweb(path: Path, rows: int = 400, *, seed: int = 1, row_group: int = 50) -> Path:
    """A FineWeb-schema file of that many seeded rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows_of(rows, seed), schema=SCHEMA)
    pq.write_table(table, path, row_group_size=row_group, compression="snappy", write_page_checksum=True)
    return path


def write_repeated(path: Path, text: str, rows: int) -> Path:
    """A file of some hundred bytes whose every row is the same text: one entry of a dictionary."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [text])
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": column}), path, compression="zstd", store_schema=False)
    return path


def truncate(path: Path, share: float = 0.5) -> Path:
    """Keep only the first part of the file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


def flip_page(path: Path, row_group: int, column: str = "text") -> Path:
    """Flip bytes in the middle of one column chunk; the footer stays whole."""
    group = pq.ParquetFile(path).metadata.row_group(row_group)
    chunks = [group.column(number) for number in range(group.num_columns)]
    chunk = next(each for each in chunks if each.path_in_schema == column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    for place in range(
        start + chunk.total_compressed_size // 2, start + chunk.total_compressed_size // 2 + 16
    ):
        data[place] ^= 0x5A
    path.write_bytes(data)
    return path


def write_columns(path: Path, **columns: pa.Array) -> Path:
    """A parquet file of just these columns."""
    pq.write_table(pa.table(columns), path)
    return path
