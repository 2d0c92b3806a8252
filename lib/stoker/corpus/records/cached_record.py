"""A record that one daemon writes and another polls: parsed again only after its file changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from stoker.store.errors import storage_errors

T = TypeVar("T")


class CachedRecord(Generic[T]):
    """Caches the result of `parse` until the file changes; the result is `absent` while there is no file."""

    def __init__(self, file: Path, parse: Callable[[], T], absent: T) -> None:
        self._file, self._parse, self._absent = file, parse, absent
        self._stamp: tuple[int, ...] | None = None
        self._found = absent

    def read(self) -> T:
        """Returns the parsed record: the same object until the file changes."""
        with storage_errors("look at", self._file):
            try:
                about = self._file.stat()
            except FileNotFoundError:
                self._stamp, self._found = None, self._absent
                return self._found
        stamp = (about.st_ino, about.st_size, about.st_mtime_ns)
        if stamp != self._stamp:
            self._found, self._stamp = self._parse(), stamp
        return self._found
