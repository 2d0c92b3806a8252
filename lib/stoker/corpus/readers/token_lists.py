"""Takes token ids out of a column of lists: each list is one document, with end-of-text at its end."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.corpus.readers.finding import BadFile
from stoker.corpus.readers.table import Tokens

IDS = (pa.uint16(), pa.uint32())
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def is_token_lists(type_: pa.DataType) -> bool:
    """Whether a column of this type holds lists of uint16 or uint32, of any length or of a fixed one."""
    return any(is_kind(type_) for is_kind in LISTS) and type_.value_type in IDS


def decode_tokens(
    column: pa.Array, rules: Tokens, first: int, row_group: int, name: str
) -> list[memoryview | None]:
    """Returns each list's ids in the rules' type, None for null; `first` is the row number of the first list.

    Raises BadFile that names the row of an id beyond the vocabulary, or of a list without end-of-text.
    """
    if not len(column):
        return []
    begins, ends = _bounds(column)
    ids, present = _numbers(column.values), ~_nulls(column)

    def check(is_bad: npt.NDArray[np.bool_], flaw: str) -> None:
        if (bad := np.flatnonzero(is_bad & present)).size:
            row = int(bad[0])
            shown = ids[begins[row] : ends[row]][:8].tolist()
            raise BadFile("bad_tokens", f"row {first + row}, which begins {shown}: {flaw}", row_group, name)

    def holds(is_bad: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        before = np.append(0, np.cumsum(is_bad))
        return np.asarray(before[ends] > before[begins])

    if column.values.null_count:
        check(holds(_nulls(column.values)), "a null among its ids")
    if (beyond := ids >= rules.vocab_size).any():
        check(holds(beyond), f"an id beyond the tokenizer's {rules.vocab_size}")
    if rules.eot is not None:
        last = np.full(len(column), -1, np.int64)
        some = ends > begins
        last[some] = ids[ends[some] - 1]
        check(last != rules.eot, f"end-of-text, {rules.eot}, is not at its end")
    view = np.ascontiguousarray(ids, np.dtype(rules.dtype).newbyteorder("<")).data
    places = zip(begins.tolist(), ends.tolist(), present.tolist(), strict=True)
    return [view[begin:end] if is_there else None for begin, end, is_there in places]


def _bounds(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns where each list begins and ends among the values."""
    if pa.types.is_fixed_size_list(column.type):
        begins = np.arange(column.offset, column.offset + len(column)) * column.type.list_size
        return begins, begins + column.type.list_size
    kind = np.int64 if pa.types.is_large_list(column.type) else np.int32
    offsets = np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column) + 1]
    return offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)


def _numbers(values: pa.Array) -> npt.NDArray[Any]:
    """Returns the values from Arrow's buffer: its conversion would load pandas where that is installed."""
    buffer, kind = values.buffers()[1], np.dtype(str(values.type))
    return np.frombuffer(b"" if buffer is None else buffer, kind)[values.offset : values.offset + len(values)]


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    if not array.null_count:
        return np.zeros(len(array), dtype=bool)
    return np.array(array.is_null().to_pylist(), dtype=bool)
