"""The readers by name. Another kind of file gets a module with a Reader, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from stoker.shards.build.batches import Reader
from stoker.shards.build.parquet import ParquetText

# Each is made of the file, its text column, the filters' columns with their kinds, and rows in a batch.
READERS: Mapping[str, Callable[[Path, str, Mapping[str, str], int], Reader]] = {"parquet": ParquetText}
