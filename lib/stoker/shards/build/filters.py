"""The steps that drop rows: from a parameter to a function from a batch to the mask of rows that pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.corpus.readers.finding import BadFile
from stoker.corpus.readers.reader import Batch
from stoker.shards.format.identity import Filters
from stoker.shards.format.steps import STEPS

Mask = npt.NDArray[np.bool_]
Passes = Callable[[Batch], Mask]
Filter = tuple[str, Passes]


@dataclass(frozen=True)
class Selection:
    """The result of filtering a batch."""

    keep: Mask
    dropped: dict[str, int]  # rows by filter
    chars: int  # code points of the kept rows


def make_filters(filters: Filters) -> list[Filter]:
    """Returns the configured filters; a row that fails several counts under the first."""
    made: list[Filter] = [("null", lambda batch: batch.present)]
    for name, parameter in filters.steps().items():
        module, _, function = STEPS[name].make.partition(":")
        made.append((name, getattr(import_module(module), function)(parameter)))
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


def min_chars(least: int) -> Passes:
    return lambda batch: batch.chars >= least


def max_chars(most: int) -> Passes:
    return lambda batch: batch.chars <= most


def languages(wanted: Iterable[str]) -> Passes:
    """Passes the rows in these languages; compares bytes, because a language need not be UTF-8."""
    words = frozenset(language.encode() for language in wanted)
    return lambda batch: np.array(
        [word in words for word in _values(batch, "language", pa.string())], dtype=bool
    )


def at_least(values: Mapping[str, float]) -> Passes:
    """Passes the rows whose numbers all reach their least value; null and NaN do not.

    A number with more digits than a float holds is rounded.
    """

    def passes(batch: Batch) -> Mask:
        passing: Mask = np.ones(batch.rows, dtype=bool)
        for column, least in values.items():
            numbers = _values(batch, column, pa.float64())
            found = [np.nan if number is None else number for number in numbers]
            passing &= np.array(found, dtype=np.float64) >= least
        return passing

    return passes


def _values(batch: Batch, column: str, kind: pa.DataType) -> list[Any]:
    """Returns a column as Python objects: Arrow's functions and numpy take 35 ms to load, and load pandas."""
    try:
        cast = batch.columns[column].cast(kind, safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadFile("column_type", str(error), row_group=batch.row_group, column=column) from error
    values: list[Any] = (cast.view(pa.binary()) if kind == pa.string() else cast).to_pylist()
    return values
