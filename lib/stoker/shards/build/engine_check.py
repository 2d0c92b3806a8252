"""Chooses a file's engine: the fast one where its tokens equal the reference's, else the reference.

Both encode odd texts once for each tokenizer, and a sample of every file before its first batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from stoker.shards.build.parquet import ParquetText
from stoker.shards.tokenize.engine import Engine, EngineUnsupported, HFEngine
from stoker.shards.tokenize.fastokens_engine import FastEngine
from stoker.shards.tokenize.probes import probes
from stoker.shards.tokenize.tokenizer import FrozenTokenizer

PLACE_BYTES = 16 << 10  # of text at each place; the reference encodes 1 to 4 MB a second
LEAST_PLACES, MOST_PLACES = 2, 16  # in the file, spread over its row groups
BYTES_A_PLACE = 64 << 20  # of the file: a place costs some 15 ms, and so many bytes take a builder a second
MOST_CHARS = 1 << 12  # of one document


class Engines:
    """The engines for one tokenizer; `refused` is why the fast engine cannot be used, empty where it can."""

    def __init__(self, tokenizer: FrozenTokenizer, *, fast: bool = True) -> None:
        self.reference: Engine = HFEngine(tokenizer)
        self._fast: Engine = self.reference
        self.refused = ""
        if not fast:
            return
        try:
            self._fast = FastEngine(tokenizer)
            self.refused = _difference(self.reference, self._fast, probes(tokenizer.special), "odd texts")
        except EngineUnsupported as error:
            self.refused = str(error)

    def choose(self, parquet: Path, text_column: str) -> tuple[Engine, str]:
        """Returns the engine for a file, and why it is not the fast one; raises BadParquet, StorageError."""
        refused = self.refused
        if not refused and self._fast is not self.reference:
            sample = _sample(parquet, text_column)
            differences = (_difference(self.reference, self._fast, texts, place) for place, texts in sample)
            refused = next(filter(None, differences), "")
        return (self.reference if refused else self._fast), refused


def _sample(parquet: Path, text_column: str) -> Iterator[tuple[str, list[str]]]:
    """Yields documents from places spread over the file, with a description of each place."""
    wanted = max(LEAST_PLACES, min(MOST_PLACES, parquet.stat().st_size // BYTES_A_PLACE))
    source = ParquetText(parquet, text_column, {}, 64)
    groups = [group for group, rows in enumerate(source.group_rows) if rows]
    spread = np.linspace(0, len(groups) - 1, min(wanted, len(groups))).round().astype(int)
    chosen = sorted({groups[place] for place in spread.tolist()}) if groups else []
    for group in chosen:
        for batch in islice(source.batches(group), max(1, wanted // len(chosen))):
            if batch.row_group != group:
                break
            texts, room = [], PLACE_BYTES
            for text in batch.texts:
                if text is not None and room > 0:
                    texts.append(text[: min(room, MOST_CHARS)])
                    room -= len(texts[-1])
            yield f"row group {group}, rows from {batch.row}", texts


def _difference(reference: Engine, fast: Engine, texts: list[str], where: str) -> str:
    """Returns how the fast engine differs on these texts; empty where it does not."""
    try:
        found, lengths = fast.documents(texts)
    except EngineUnsupported as error:
        return f"{error} ({where})"
    wanted, wanted_lengths = reference.documents(texts)
    if np.array_equal(found, wanted) and np.array_equal(lengths, wanted_lengths):
        return ""
    for number, text in enumerate(texts):
        if not np.array_equal(fast.documents([text])[0], reference.documents([text])[0]):
            return f"{fast.name} differs from {reference.name} on {where}, text {number}: {text[:80]!r}"
    return f"{fast.name} differs from {reference.name} on {where}, taken together"
