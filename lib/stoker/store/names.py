"""Names of records, text of times, and relative paths that must stay inside a directory."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from pathlib import Path, PurePosixPath

from stoker.store.errors import DataError

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class PathEscapes(DataError):
    """A relative path leads out of its directory."""


def record_name(dataset: str, path: str) -> str:
    """Returns the record name of a dataset's file: a readable stem, and 12 hex digits for equal stems."""
    stem = _UNSAFE.sub("", PurePosixPath(path).stem).lstrip(".")[:80] or "file"
    digest = hashlib.sha256(f"{dataset}\0{path}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"{stem}-{digest[:12]}"


def inside(root: Path, relative: str) -> Path:
    """Joins an untrusted relative path to root; raises PathEscapes if it is absolute, empty or has "..".

    Does not look at the disk: the caller must care for symbolic links below root.
    """
    pure = PurePosixPath(relative)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in relative:
        raise PathEscapes(f"{relative!r} is no path inside {root}; correct whatever names it")
    return root / pure


def as_text(words: str) -> str:
    """Returns the text with bytes that are not UTF-8 escaped: a file name may hold them, JSON cannot."""
    return words.encode(errors="backslashreplace").decode()


def utc_now() -> str:
    """Returns the time of the wall clock as `2026-11-20T12:00:00Z`."""
    return utc_at(time.time())


def utc_at(seconds: float) -> str:
    """Returns a Unix time as `2026-11-20T12:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def new_id() -> str:
    """Returns a new id that sorts by time: `20261120T120000Z-1a2b3c4d`."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + secrets.token_hex(4)
