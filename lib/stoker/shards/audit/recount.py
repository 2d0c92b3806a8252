"""A recount of one parquet file: books and row numbers, all that can be had of a set without encoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.shards.build.builder import val_decision
from stoker.shards.build.filters import make_filters, select
from stoker.shards.build.parquet import ParquetText
from stoker.shards.format.identity import BuildParameters
from stoker.shards.format.manifest import SPLITS
from stoker.shards.format.reader import ShardSet

Rows = npt.NDArray[np.int64]


def recount(
    parquet: Path, parameters: BuildParameters, kept: Callable[[str, Rows], None] | None = None
) -> dict[str, Any]:
    """Rows, drops, documents and code points of a source file, named as books name them.

    `kept` is told the row numbers of documents in order, a batch at a time, with the split they fall into.
    Raises BadParquet, StorageError.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    filters = make_filters(parameters.filters)
    held_out = val_decision(parameters.val_ratio, parameters.val_salt)
    counted: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    source = ParquetText(parquet, parameters.text_column, parameters.filters.columns())
    for batch in source.batches():
        selection = select(batch, filters)
        texts = [batch.utf8[row] for row in np.flatnonzero(selection.keep).tolist()]
        val = held_out(texts)
        if kept is not None:
            numbers = source.row_numbers(batch)[selection.keep]
            kept("train", numbers[~val])
            kept("val", numbers[val])
        of_val = int(val.sum())
        counted.update(rows=batch.rows, chars=selection.chars, val=of_val, train=len(texts) - of_val)
        dropped.update(selection.dropped)
    return {
        "rows": counted["rows"],
        "chars": counted["chars"],
        "dropped": dict(dropped),
        "documents": counted["train"] + counted["val"],
        **{split: {"documents": counted[split]} for split in SPLITS},
    }


class RowComparison:
    """A set's row numbers against those that `recount` tells; `findings` name the first wrong one a split.

    Raises DataError where the set's files have not the sizes that its manifest tells.
    """

    def __init__(self, shard_set: Path) -> None:
        found = ShardSet(shard_set)
        self._found = {split: np.concatenate(list(found.rows(split))) for split in SPLITS}
        self._compared = dict.fromkeys(SPLITS, 0)
        self._wrong: dict[str, str] = {}

    def __call__(self, split: str, rows: Rows) -> None:
        """Compare the split's next documents."""
        first = self._compared[split]
        self._compared[split] += len(rows)
        found = self._found[split][first : first + len(rows)].astype(np.int64)
        wrong = np.flatnonzero(found != rows[: len(found)])  # how many there are is for the books to tell
        if wrong.size and split not in self._wrong:
            place = int(wrong[0])
            self._wrong[split] = (
                f"{split} document {first + place} is from row {found[place]} by its .row file, "
                f"from row {rows[place]} by the parquet"
            )

    @property
    def findings(self) -> list[str]:
        return list(self._wrong.values())
