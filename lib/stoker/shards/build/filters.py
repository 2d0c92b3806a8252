"""Filters: functions from a batch to the rows that pass, each with the name its drops are booked under.

A new filter is a line in `make_filters`, and a parameter of the build (`identity.Filters`), since it changes
what comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.corpus.staging.finding import BadParquet
from stoker.shards.build.batches import Batch
from stoker.shards.format.identity import Filters

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
    made: list[Filter] = [("null", lambda batch: batch.present)]
    if (least := filters.min_chars) is not None:
        made.append(("min_chars", lambda batch: batch.chars >= least))
    if (most := filters.max_chars) is not None:
        made.append(("max_chars", lambda batch: batch.chars <= most))
    if filters.languages is not None:
        wanted = frozenset(language.encode() for language in filters.languages)
        made.append(("languages", lambda batch: _of_languages(batch, wanted)))
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
    return Selection(keep, dropped, int(batch.chars[keep].sum()))


def _at_least(batch: Batch, filters: Filters) -> Mask:
    """Rows whose numbers all reach their least value; null and NaN do not.

    A number of more digits than a float holds is rounded.
    """
    passing: Mask = np.ones(batch.rows, dtype=bool)
    for column, least in filters.at_least.items():
        numbers = _values(batch, column, pa.float64())
        found = [np.nan if number is None else number for number in numbers]
        passing &= np.array(found, dtype=np.float64) >= least
    return passing


def _of_languages(batch: Batch, wanted: frozenset[bytes]) -> Mask:
    """As bytes: a word need not be UTF-8."""
    return np.array([word in wanted for word in _values(batch, "language", pa.string())], dtype=bool)


def _values(batch: Batch, column: str, kind: pa.DataType) -> list[Any]:
    """A column's values. As Python's: Arrow's functions and numpy take 35 ms to load, and load pandas too."""
    try:
        cast = batch.columns[column].cast(kind, safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadParquet("column_type", str(error), row_group=batch.row_group, column=column) from error
    values: list[Any] = (cast.view(pa.binary()) if kind == pa.string() else cast).to_pylist()
    return values
