"""The longest text that a parquet file stores once for many rows; the footer does not show its length."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_HARMLESS = 64 << 20  # bytes that a batch would take at most if every row were as long as its row group
# A larger compressed dictionary holds about one text a row, and is expensive to read twice.
_SMALL, _BYTES_A_ROW = 256 << 10, 64
_UNKNOWN = 1 << 20  # assumed with DELTA_BYTE_ARRAY, where each row may repeat the row before


def longest_entry(path: Path, metadata: pq.FileMetaData, group: int, column: str) -> int:
    """Returns the bytes of the longest text that rows of a row group may share; 0 where they share little.

    An unreadable dictionary gives 0 as well: the decoder of the row group reports the flaw.
    """
    about = metadata.row_group(group)
    chunks = (about.column(number) for number in range(about.num_columns))
    chunk = next((each for each in chunks if each.path_in_schema == column), None)
    if chunk is None or about.num_rows * chunk.total_uncompressed_size <= _HARMLESS:
        return 0
    if "DELTA_BYTE_ARRAY" in chunk.encodings:
        return _UNKNOWN
    begins = chunk.dictionary_page_offset
    if begins is None or chunk.data_page_offset - begins > max(_SMALL, _BYTES_A_ROW * about.num_rows):
        return 0
    try:
        file = pq.ParquetFile(path, metadata=metadata, read_dictionary=[column], pre_buffer=False)
        values = next(file.iter_batches(1, [group], [column], use_threads=False))[column]
        return int(pc.max(pc.binary_length(values.dictionary)).as_py() or 0)
    except (pa.ArrowException, OSError, ValueError, StopIteration, AttributeError):
        return 0
