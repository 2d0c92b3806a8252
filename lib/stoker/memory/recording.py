"""Writes a recording: a CSV with a row a moment, each written whole, the last one of the kind `exit`.

Rows hold bytes and seconds; a figure that is not known is empty.
"""

from __future__ import annotations

import csv
import io
import os
import stat
from collections.abc import Callable
from pathlib import Path

from stoker.kit.terminal import harmless
from stoker.store.errors import UsageError, storage_errors
from stoker.store.files import write_all

NOTE_CHARS = 4096  # of a mark or another note
COLUMNS = (
    *("time", "elapsed_s", "kind", "processes", "rss_bytes", "pss_bytes", "uss_bytes", "swap_bytes"),
    *("peak_rss_bytes", "available_bytes", "gpu_bytes", "by_name", "exit_code", "signal", "note"),
)


def csv_line(cells: dict[str, object]) -> bytes:
    """Returns a row as one line; texts are cut and their control characters are escaped."""
    texts = {name: harmless(str(cells.get(name) or "")[:NOTE_CHARS]) for name in ("by_name", "note")}
    out = io.StringIO()
    csv.DictWriter(out, COLUMNS, lineterminator="\n").writerow({**cells, **texts})
    return out.getvalue().encode("utf-8", "replace")


class RecordingFile:
    """Appends whole rows to a new CSV. Where that fails, `say` hears of it once; later rows are tried."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Writes the header; raises UsageError for a file with content, StorageError or OSError."""
        self.path, self._say, self.lost = path, say, 0  # lost: rows
        with storage_errors("write", path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            if os.fstat(self._fd).st_size:
                raise UsageError(f"{path} exists; name a new file")
            self._append(",".join(COLUMNS).encode() + b"\n")

    def write(self, cells: dict[str, object]) -> None:
        """Appends the row; a failure takes back what the disk took of it."""
        try:
            self._append(csv_line(cells))
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                self._say(
                    f"cannot write {self.path}: {error.strerror}; rows are lost until it can be written"
                )

    def _append(self, data: bytes) -> None:
        found = os.fstat(self._fd)
        try:
            write_all(self._fd, data)
        except OSError:
            if stat.S_ISREG(found.st_mode):
                os.ftruncate(self._fd, found.st_size)
            raise
