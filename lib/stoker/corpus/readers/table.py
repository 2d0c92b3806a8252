"""The readers of source files by suffix, as strings: daemons import this table, and workers alone read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple, Self

# A module has the functions of `reader.Reader`. It is loaded when the first file of its kind is read.
READERS = {".parquet": "stoker.corpus.readers.parquet"}
# For a name with another suffix, or none: what is no parquet by its content goes to quarantine.
DEFAULT = ".parquet"


class Tokens(NamedTuple):
    """What a column of token ids must hold; without a value, what is known before the tokenizer is."""

    vocab_size: int = 2**32  # the highest id plus 1
    eot: int | None = None  # the id that ends each document
    dtype: str = "uint32"  # of the ids as they are given out

    @classmethod
    def of(cls, task: Mapping[str, Any]) -> Self | None:
        """Returns a task's rules for tokens; None where its column holds text."""
        rules = task.get("tokens")
        return None if rules is None else cls(**rules)


def suffix_of(name: str) -> str:
    """Returns the suffix in READERS by which a file of this name is read."""
    suffix = PurePath(name).suffix
    return suffix if suffix in READERS else DEFAULT
