"""What the fetch worker says, as its daemon reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Said:
    """One message; a kind has the fields that the worker's module names, `cause` for its class."""

    kind: str
    path: str = ""
    bytes: int = 0
    received: int = 0
    offset: int = 0
    dropped: int = 0
    files: int = 0
    # retry, failed, anew, not_removed
    cause: str = ""
    reason: str = ""
    status: int | None = None
    errno: int | None = None
    wait_s: float = 0.0
    # done
    how: str = ""
    size: int = 0
    sha256: str = ""
    etag: str = ""
    cached: bool = False
    unproven: bool = False
    fetched: int = 0
    # mismatch
    expected: str = ""
    found: str = ""
    count: int = 0
    evidence: str = ""
    landed: bool = False
    # ready
    unfinished: tuple[Any, ...] = ()
    foreign: tuple[str, ...] = ()
    device: int = 0


def parse(message: Mapping[str, Any]) -> Said:
    """The message of a worker's line; TypeError for a field that it never has."""
    names = {"class": "cause"}
    lists = {name: tuple(value) for name, value in message.items() if isinstance(value, list)}
    return Said(**{names.get(name, name): value for name, value in {**message, **lists}.items()})
