"""What a file's failure says: of the landing's disk, of the access to the source, of us, or of the file."""

from __future__ import annotations

from typing import Literal

from stoker.corpus.http.retry_rules import LOCAL

Blame = Literal["disk", "access", "ours", "file"]
# Of a repository these hold for all its files; "forbidden" only where no file came since it was said last.
_OF_THE_SOURCE = ("gated", "unauthorized", "forbidden", "vanished")
_OURS = ("storage", "bug")  # a place that cannot be written, or a mistake in the worker: met by one file


def blame(cause: str, *, is_repo: bool, something_came: bool) -> Blame:
    """What to blame for a failure of that name: what the disk, the access or we did gives no file up."""
    if cause in _OURS:
        return "ours"
    if cause in LOCAL:
        return "disk"
    if is_repo and cause in _OF_THE_SOURCE and not (cause == "forbidden" and something_came):
        return "access"
    return "file"
