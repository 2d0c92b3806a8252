"""Text and parquet for tests: seeded, odd where text can be odd, without any of the project's code."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ODD = (
    "e\u0301 \u00e9 \ufb01 \u2460 \uff21",
    "  leading,   inner and trailing  \r\n\t\n ",
    "\u4e2d\u6587 \ud55c\uad6d\uc5b4 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \U0001f9d1\u200d\U0001f680",
    "\x00\x01\x7f\x85\ufeff\u200b\u202e\U0010ffff",
    "before<|endoftext|>after <s></s> [CLS] <|endoftext|>",
)
_PROSE = """
the of and stoker tokens shard ledger river winter candle morning quiet stone copper engine 1999 3.14 naïve
œuvre straße über façade \U0001f525 don't we'll (perhaps) "quoted" e-mail http://x.example/a?b=c
"""
_WORDS = _PROSE.split()


def documents(count: int, seed: int = 1) -> list[str | None]:
    """Documents of some 20 to 1,200 characters; one in 23 is null, one in 17 very short, one in 19 odd."""
    rng = random.Random(seed)
    made: list[str | None] = []
    for number in range(count):
        if number % 23 == 7:
            made.append(None)
        elif number % 17 == 3:
            made.append(rng.choice(["", "x", "short \U0001f525"]))
        else:
            words = rng.choices(_WORDS, k=rng.randint(4, 180))
            text = " ".join(words) + rng.choice(["", "\n", "\n\n", " "])
            made.append(text + ODD[number % len(ODD)] if number % 19 == 5 else text)
    return made


def write_parquet(path: Path, texts: list[str | None], *, row_group: int = 100, seed: int = 1) -> Path:
    """A parquet file with columns text, id, language and language_score, page checksums included."""
    rng = random.Random(seed)
    table = pa.table(
        {
            "text": pa.array(texts, pa.string()),
            "id": [f"<{seed}:{number}>" for number in range(len(texts))],
            "language": [rng.choice(["en", "en", "en", "de", None]) for _ in texts],
            "language_score": [rng.choice([None, rng.random(), rng.random()]) for _ in texts],
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group, compression="snappy", write_page_checksum=True)
    return path


def damage_page(path: Path, row_group: int, column: str = "text") -> Path:
    """Flip bytes in the middle of one column chunk; the footer stays whole."""
    metadata = pq.ParquetFile(path).metadata.row_group(row_group)
    chunk = next(
        metadata.column(place)
        for place in range(metadata.num_columns)
        if metadata.column(place).path_in_schema == column
    )
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    middle = start + chunk.total_compressed_size // 2
    data = bytearray(path.read_bytes())
    for place in range(middle, middle + 16):
        data[place] ^= 0x5A
    path.write_bytes(data)
    return path
