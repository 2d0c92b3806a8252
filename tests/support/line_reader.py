"""A reader and a step that only a test has: a line of a .txt file is a document, and few words are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.corpus.readers.finding import BadFile, Finding
from stoker.corpus.readers.reader import Batch
from stoker.corpus.readers.table import Tokens
from stoker.shards.format.steps import Step
from stoker.store.errors import storage_errors

READER = {".txt": "support.line_reader"}
STEP = {"min_words": Step(1, "support.line_reader:min_words")}


class Lines:
    """One row group; a row is a line."""

    groups = (0,)

    def __init__(
        self,
        path: Path,
        text_column: str,
        columns: Mapping[str, str] = {},
        read_rows: int = 250,
        tokens: Tokens | None = None,
    ) -> None:
        self.path, self.read_rows = path, read_rows
        if columns or tokens is not None:
            raise BadFile("missing_column", "a line is text and nothing else")

    def batches(self, row_group: int = 0, row: int = 0) -> Iterator[Batch]:
        with storage_errors("read", self.path), self.path.open("rb") as file:
            lines = islice(file, row, None)
            while part := [line.rstrip(b"\n") for line in islice(lines, self.read_rows)]:
                try:
                    texts = [line.decode() for line in part]
                except UnicodeDecodeError as error:
                    raise BadFile("invalid_utf8", f"lines from {row}: {error}", 0) from error
                yield Batch(0, row, pa.record_batch({"text": texts}), texts, [*map(memoryview, part)])
                row += len(part)

    def after(self, batch: Batch) -> tuple[int, int]:
        return 0, batch.row + batch.rows

    def row_numbers(self, batch: Batch) -> np.ndarray:
        return np.arange(batch.row, batch.row + batch.rows)

    def read_up_to(self, row_group: int) -> int:
        return 0


open_rows = Lines


def preflight(
    path: Path,
    text_column: str,
    columns: Mapping[str, str] = {},
    *,
    tokens: Tokens | None = None,
    decode: bool = False,
    progress: Callable[[int], None] = lambda _: None,
    past_cache: bool = False,
) -> Finding | None:
    try:
        for _ in Lines(path, text_column, columns, tokens=tokens).batches() if decode else ():
            progress(0)
    except BadFile as bad:
        return bad.finding
    return None


def text_bytes(path: Path, text_column: str, tokens: Tokens | None = None) -> int:
    return path.stat().st_size


def tables(path: Path, most: int) -> Iterator[pa.Table]:
    return (pa.Table.from_batches([batch.columns]) for batch in Lines(path, "text", {}, most).batches())


def min_words(least: int) -> Callable[[Batch], np.ndarray]:
    return lambda batch: np.array([len((text or "").split()) >= least for text in batch.texts])
