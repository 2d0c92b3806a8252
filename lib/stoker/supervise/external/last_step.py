"""The last step that an ended trainer printed, for a supervisor that was not there to read it."""

from __future__ import annotations

from pathlib import Path

from stoker.supervise.external.patterns import Reader
from stoker.supervise.external.tail import Tail, TooSlowError, cpu_limit

EXPRESSION_S = 0.5  # CPU time for an operator's expression at a look


def last_step(output: Path, pattern: str | None) -> int | None:
    """Returns the last step in the end of an output; None where none can be read."""
    if pattern is None:
        return None
    try:
        with cpu_limit(EXPRESSION_S):
            read = Reader(pattern).read(Tail(output).poll(is_last=True))
    except TooSlowError:
        return None
    return read[-1].step if read else None
