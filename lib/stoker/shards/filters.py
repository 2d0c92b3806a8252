"""Filters: functions from a batch to the rows that pass, each with the name its drops are booked under."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.shards.identity import Filters
from stoker.shards.parquet import BadParquet, Batch

Mask = npt.NDArray[np.bool_]
Filter = tuple[str, Callable[[Batch], Mask]]


@dataclass(frozen=True)
class Selection:
    """Which rows of a batch are kept, how many each filter dropped, and the kept rows' code points in all."""

    keep: Mask
    dropped: dict[str, int]
    chars: int


def make_filters(filters: Filters) -> list[Filter]:
    """The filters asked for, in the order in which a row that fails several is booked."""
    made: list[Filter] = [("null", lambda batch: _mask(pc.is_valid(batch.text)))]
    if (least := filters.min_chars) is not None:
        made.append(("min_chars", lambda batch: batch_chars(batch) >= least))
    if (most := filters.max_chars) is not None:
        made.append(("max_chars", lambda batch: batch_chars(batch) <= most))
    if filters.languages is not None:
        wanted = pa.array(filters.languages, pa.string())
        made.append(
            ("languages", lambda batch: _mask(pc.is_in(_cast(batch, "language", pa.string()), wanted)))
        )
    if filters.at_least:
        made.append(("at_least", lambda batch: _at_least(batch, filters)))
    return made


def select(batch: Batch, filters: list[Filter]) -> Selection:
    """Apply the filters; a row is booked under the first that drops it."""
    keep: Mask = np.ones(batch.rows, dtype=bool)
    dropped: dict[str, int] = {}
    for name, passes in filters:
        passing = keep & passes(batch)
        if count := int(keep.sum() - passing.sum()):
            dropped[name] = count
        keep = passing
    return Selection(keep, dropped, int(batch_chars(batch)[keep].sum()))


def batch_chars(batch: Batch) -> npt.NDArray[np.int64]:
    """Each row's length in Unicode code points, 0 for null."""
    lengths: npt.NDArray[np.int64] = pc.fill_null(pc.utf8_length(batch.text), 0).to_numpy(
        zero_copy_only=False
    )
    return lengths


def _at_least(batch: Batch, filters: Filters) -> Mask:
    passing: Mask = np.ones(batch.rows, dtype=bool)
    for column, least in filters.at_least.items():
        passing &= _mask(pc.greater_equal(_cast(batch, column, pa.float64()), least))
    return passing


def _cast(batch: Batch, column: str, kind: pa.DataType) -> pa.Array:
    try:
        return batch.columns[column].cast(kind, safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadParquet("column_type", str(error), row_group=batch.row_group, column=column) from error


def _mask(values: pa.BooleanArray) -> Mask:
    """As numpy; a comparison with null passes nothing, nor does one with NaN."""
    mask: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return mask
