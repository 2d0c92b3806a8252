"""Filters: functions from a batch to the rows that pass, each with a name for its drops in the books.

A new filter is a line in `make_filters`, and a parameter of the build (`identity.Filters`), because it
changes the output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.corpus.readers.finding import BadFile
from stoker.corpus.readers.reader import Batch
from stoker.shards.format.identity import Filters

Mask = npt.NDArray[np.bool_]
Filter = tuple[str, Callable[[Batch], Mask]]


@dataclass(frozen=True)
class Selection:
    """The result of filtering a batch."""

    keep: Mask
    dropped: dict[str, int]  # rows by filter
    chars: int  # code points of the kept rows


def make_filters(filters: Filters) -> list[Filter]:
    """Returns the configured filters; a row that fails several counts under the first."""
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
    """Applies the filters; a row counts under the first filter that drops it."""
    keep: Mask = np.ones(batch.rows, dtype=bool)
    dropped: dict[str, int] = {}
    for name, passes in filters:
        passing = keep & passes(batch)
        if count := int(keep.sum() - passing.sum()):
            dropped[name] = count
        keep = passing
    return Selection(keep, dropped, int(batch.chars[keep].sum()))


def _at_least(batch: Batch, filters: Filters) -> Mask:
    """Returns the rows whose numbers all reach their least value; null and NaN do not.

    A number with more digits than a float holds is rounded.
    """
    passing: Mask = np.ones(batch.rows, dtype=bool)
    for column, least in filters.at_least.items():
        numbers = _values(batch, column, pa.float64())
        found = [np.nan if number is None else number for number in numbers]
        passing &= np.array(found, dtype=np.float64) >= least
    return passing


def _of_languages(batch: Batch, wanted: frozenset[bytes]) -> Mask:
    """Returns the rows in these languages; compares bytes, because a language need not be UTF-8."""
    return np.array([word in wanted for word in _values(batch, "language", pa.string())], dtype=bool)


def _values(batch: Batch, column: str, kind: pa.DataType) -> list[Any]:
    """Returns a column as Python objects: Arrow's functions and numpy take 35 ms to load, and load pandas."""
    try:
        cast = batch.columns[column].cast(kind, safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadFile("column_type", str(error), row_group=batch.row_group, column=column) from error
    values: list[Any] = (cast.view(pa.binary()) if kind == pa.string() else cast).to_pylist()
    return values
