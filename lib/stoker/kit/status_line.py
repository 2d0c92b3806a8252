"""One line at the bottom of a terminal that is written over and over, below what is logged.

A terminal shows it; anything else (a file, a pipe, the journal, a terminal that calls itself dumb) does not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

STDERR = 2
ERASE = b"\r\x1b[2K"  # back to the line's begin, and empty it: ECMA-48
NARROW, USUAL = 20, 80


class Footer:
    """Everything else that goes to the terminal has to go through above()."""

    def __init__(self, descriptor: int = STDERR, environ: Mapping[str, str] = os.environ) -> None:
        self._descriptor = descriptor
        self.shown = os.isatty(descriptor) and environ.get("TERM", "dumb") != "dumb"
        self._text = b""

    def show(self, line: Callable[[int], str]) -> None:
        """Replace the line by one of at most so many characters, which are one column wide each."""
        if not self.shown:
            return
        columns = self._columns()
        text = line(columns)[:columns].encode("ascii", "replace")
        if text != self._text:
            self._text = text
            self._write(ERASE + text)

    def clear(self) -> None:
        """Take it away."""
        if self._text:
            self._text = b""
            self._write(ERASE)

    def above(self, line: bytes) -> bytes:
        """What to write so that the line stands above."""
        return ERASE + line + self._text if self._text else line

    def _columns(self) -> int:
        try:
            columns = os.get_terminal_size(self._descriptor).columns
        except OSError:
            columns = 0
        # One less: in the last column some terminals go to the next line. A terminal that does not know is 0.
        return max(NARROW, (columns or USUAL) - 1)

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            os.write(self._descriptor, data)
