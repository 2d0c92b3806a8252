"""A file that is written once, from front to end, and knows its own hash."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

from stoker.store.errors import storage_errors
from stoker.store.files import FILE_MODE, write_all


class Sink(io.FileIO):
    """A new file that is written from front to end; `sha256` is of all it was given, `size` in bytes."""

    def __init__(self, path: Path) -> None:
        with storage_errors("create", path):
            super().__init__(path, "xb", opener=lambda name, flags: os.open(name, flags, FILE_MODE))
        self.path, self.size = path, 0
        self._digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Write all of it; raises StorageError."""
        view = memoryview(data).cast("B")
        with storage_errors("write", self.path):
            write_all(self.fileno(), view)
        self._digest.update(view)
        self.size += len(view)
        return len(view)

    def settle(self) -> None:
        """Make what was written durable; its directory's entry is not."""
        with storage_errors("sync", self.path):
            os.fdatasync(self.fileno())

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()
