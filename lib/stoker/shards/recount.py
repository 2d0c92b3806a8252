"""A recount of one parquet file: the books as far as they can be had without encoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from stoker.shards.builder import val_decision
from stoker.shards.filters import make_filters, select
from stoker.shards.identity import BuildParameters
from stoker.shards.parquet import ParquetText


def recount(parquet: Path, parameters: BuildParameters) -> dict[str, Any]:
    """Rows, drops, documents and code points of a source file, named as books name them.

    Raises BadParquet, StorageError.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    filters = make_filters(parameters.filters)
    is_val = val_decision(parameters.val_ratio, parameters.val_salt)
    counted = {"rows": 0, "chars": 0, "train": 0, "val": 0}
    dropped: dict[str, int] = {}
    for batch in ParquetText(parquet, parameters.text_column, parameters.filters.columns()).batches():
        selection = select(batch, filters)
        texts = batch.text.filter(pa.array(selection.keep)).to_pylist()
        held_out = sum(map(is_val, texts))
        counted["rows"] += batch.rows
        counted["chars"] += selection.chars
        counted["val"] += held_out
        counted["train"] += len(texts) - held_out
        for reason, rows in selection.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + rows
    return {
        "rows": counted["rows"],
        "chars": counted["chars"],
        "dropped": dropped,
        "documents": counted["train"] + counted["val"],
        "train": {"documents": counted["train"]},
        "val": {"documents": counted["val"]},
    }
