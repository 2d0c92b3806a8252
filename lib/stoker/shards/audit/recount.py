"""A recount of one parquet file: books and row numbers, all figures of a set that need no encoding."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.corpus.readers.reader import reader_of
from stoker.corpus.records.sources import SPLITS
from stoker.shards.build.builder import val_decision
from stoker.shards.build.filters import make_filters, select
from stoker.shards.format.identity import BuildParameters
from stoker.shards.format.reader import ShardSet


@dataclass(frozen=True)
class Recount:
    """A source file's books without tokens, and the row numbers of each split's documents in order."""

    books: dict[str, Any]
    rows: dict[str, npt.NDArray[np.int64]]


def recount(parquet: Path, parameters: BuildParameters) -> Recount:
    """Counts rows, drops, documents and code points of a source file; raises BadFile, StorageError."""
    pa.set_memory_pool(pa.system_memory_pool())
    filters = make_filters(parameters.filters)
    held_out = val_decision(parameters.val_ratio, parameters.val_salt)
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    rows: dict[str, list[npt.NDArray[np.int64]]] = {split: [np.empty(0, np.int64)] for split in SPLITS}
    columns, tokens = parameters.filters.columns(), parameters.token_rules
    source = reader_of(parquet).open_rows(parquet, parameters.text_column, columns, tokens=tokens)
    for batch in source.batches():
        selection = select(batch, filters)
        val = held_out(batch.utf8[row] for row in np.flatnonzero(selection.keep).tolist())
        numbers = source.row_numbers(batch)[selection.keep]
        rows["train"].append(numbers[~val])
        rows["val"].append(numbers[val])
        counts.update(rows=batch.rows, chars=selection.chars)
        dropped.update(selection.dropped)
    whole = {split: np.concatenate(parts) for split, parts in rows.items()}
    documents = {split: {"documents": len(numbers)} for split, numbers in whole.items()}
    total = sum(map(len, whole.values()))
    figures = {"rows": counts["rows"], "chars": counts["chars"], "dropped": dict(dropped)}
    return Recount({**figures, "documents": total, **documents}, whole)


def row_findings(shard_set: Path, counted: Recount) -> list[str]:
    """Returns the first row number of each split that differs from the parquet's.

    The books compare the counts.

    Raises DataError where the set's files do not have the sizes in its manifest.
    """
    findings = []
    opened = ShardSet(shard_set)
    for split in SPLITS:
        found, rows = np.concatenate(list(opened.rows(split))).astype(np.int64), counted.rows[split]
        both = min(len(found), len(rows))
        wrong = np.flatnonzero(found[:both] != rows[:both])
        if wrong.size:
            place = int(wrong[0])
            findings.append(
                f"{split} document {place} is from row {found[place]} by its .row file, "
                f"from row {rows[place]} by the parquet"
            )
    return findings
