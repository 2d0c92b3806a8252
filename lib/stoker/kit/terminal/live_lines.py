"""Terminal output: folded lines of text above live lines that are rewritten in place.

Live lines are written only to a terminal, never to a file, a pipe, the journal or a terminal with TERM=dumb.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence

STDERR = 2
ERASE, ROW_ABOVE = b"\r\x1b[2K", b"\x1b[A\x1b[2K"  # erase this row; go up and erase that row: ECMA-48
NARROW, USUAL = 20, 80
BOLD, DIM, RED, GREEN, YELLOW, PLAIN = "1", "2", "31", "32", "33", "0"
COLOURS = {"info": PLAIN, "warning": YELLOW, "error": RED}


def coloured(descriptor: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the descriptor is a terminal that wants colour (no-color.org)."""
    return os.isatty(descriptor) and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def paint(text: str, colour: str) -> str:
    return text if colour == PLAIN else f"\x1b[{colour}m{text}\x1b[0m"


def columns_of(descriptor: int) -> int:
    """Returns the number of columns to fill: all but the last, at which some terminals wrap."""
    try:
        columns = os.get_terminal_size(descriptor).columns
    except OSError:
        columns = 0
    return max(NARROW, (columns or USUAL) - 1)  # a terminal that does not know its width reports 0


def fold(text: str, columns: int, indent: int = 0) -> str:
    """Returns the text wrapped to that many columns, later lines indented; a path is never broken."""
    lines = textwrap.wrap(
        text, max(NARROW // 2, columns - indent), break_long_words=False, break_on_hyphens=False
    )
    return ("\n" + " " * indent).join(lines)


class Footer:
    """The live lines of a terminal. All other output to the terminal must pass through above()."""

    def __init__(self, descriptor: int = STDERR, environ: Mapping[str, str] = os.environ) -> None:
        self._descriptor = descriptor
        self.shown = os.isatty(descriptor) and environ.get("TERM", "dumb") != "dumb"
        self._coloured = coloured(descriptor, environ)
        self._rows: list[bytes] = []
        self._widths: list[int] = []

    def show(self, *lines: Callable[[int], str], colours: Sequence[str] = ()) -> None:
        """Replaces the live lines; each callable gets the number of columns.

        Each character must be a column wide.
        """
        if not self.shown:
            return
        columns = columns_of(self._descriptor)
        texts = [line(columns)[:columns].encode("ascii", "replace").decode() for line in lines]
        widths = [len(text) for text in texts]
        if self._coloured and colours:
            texts = [paint(text, colour) for text, colour in zip(texts, colours, strict=True)]
        rows = [text.encode() for text in texts]
        if rows != self._rows:
            erase = self._erase()
            self._rows, self._widths = rows, widths
            self._write(erase + b"\n".join(rows))

    def clear(self) -> None:
        if self._rows:
            erase = self._erase()
            self._rows, self._widths = [], []
            self._write(erase)

    def above(self, line: bytes) -> bytes:
        """Returns the bytes that write `line` above the live lines."""
        return self._erase() + line + b"\n".join(self._rows) if self._rows else line

    def line(self, text: str, level: str = "info", label: str = "", at: str = "") -> bytes:
        """Returns the bytes that write the text above the live lines, with its time, folded and coloured."""
        head = f"{at or time.strftime('%H:%M:%S')} {label}"
        mark = "" if self._coloured or level == "info" else f"{level}: "
        folded = fold(mark + text, columns_of(self._descriptor), len(head))
        if self._coloured:
            head, folded = paint(head, DIM), paint(folded, COLOURS.get(level, PLAIN))
        return self.above(f"{head}{folded}\n".encode("utf-8", "replace"))

    def _erase(self) -> bytes:
        columns = columns_of(self._descriptor) + 1  # a terminal narrowed since then has folded the old rows
        rows = sum(1 + max(0, width - 1) // columns for width in self._widths)
        return ERASE + ROW_ABOVE * (rows - 1)

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            os.write(self._descriptor, data)
