"""The readers of source files by suffix, as strings: daemons import this table, and workers alone read."""

from __future__ import annotations

from pathlib import PurePath

# A module has the functions of `reader.Reader`. It is loaded when the first file of its kind is read.
READERS = {".parquet": "stoker.corpus.readers.parquet"}
# For a name with another suffix, or none: what is no parquet by its content goes to quarantine.
DEFAULT = ".parquet"


def suffix_of(name: str) -> str:
    """Returns the suffix in READERS by which a file of this name is read."""
    suffix = PurePath(name).suffix
    return suffix if suffix in READERS else DEFAULT
