"""What a person sees on a terminal: folded lines of text above lines that are written over and over.

Live lines are for a terminal alone, not for a file, a pipe, the journal or a terminal that calls itself dumb.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence

STDERR = 2
ERASE, ROW_ABOVE = b"\r\x1b[2K", b"\x1b[A\x1b[2K"  # empty this row; go up and empty that one: ECMA-48
NARROW, USUAL = 20, 80
BOLD, DIM, RED, GREEN, YELLOW, PLAIN = "1", "2", "31", "32", "33", "0"
COLOURS = {"info": PLAIN, "warning": YELLOW, "error": RED}


def coloured(descriptor: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether that is a terminal which wants colour (no-color.org)."""
    return os.isatty(descriptor) and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def paint(text: str, colour: str) -> str:
    """The text in a colour."""
    return text if colour == PLAIN else f"\x1b[{colour}m{text}\x1b[0m"


def columns_of(descriptor: int) -> int:
    """How many columns to fill: one less than there are, where some terminals go to the next line."""
    try:
        columns = os.get_terminal_size(descriptor).columns
    except OSError:
        columns = 0
    return max(NARROW, (columns or USUAL) - 1)  # a terminal that does not know says 0


def fold(text: str, columns: int, indent: int = 0) -> str:
    """The text in lines of so many columns, all but the first indented; a path is never broken."""
    lines = textwrap.wrap(
        text, max(NARROW // 2, columns - indent), break_long_words=False, break_on_hyphens=False
    )
    return ("\n" + " " * indent).join(lines)


class Footer:
    """The live lines. Everything else that goes to the terminal has to go through above()."""

    def __init__(self, descriptor: int = STDERR, environ: Mapping[str, str] = os.environ) -> None:
        self._descriptor = descriptor
        self.shown = os.isatty(descriptor) and environ.get("TERM", "dumb") != "dumb"
        self._coloured = coloured(descriptor, environ)
        self._rows: list[bytes] = []
        self._widths: list[int] = []

    def show(self, *lines: Callable[[int], str], colours: Sequence[str] = ()) -> None:
        """Replace the lines by others of at most so many characters, which are one column wide each."""
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
        """Take them away."""
        if self._rows:
            erase = self._erase()
            self._rows, self._widths = [], []
            self._write(erase)

    def above(self, line: bytes) -> bytes:
        """What to write so that the line stands above."""
        return self._erase() + line + b"\n".join(self._rows) if self._rows else line

    def line(self, text: str, level: str = "info", label: str = "", at: str = "") -> bytes:
        """What to write so that a person reads the text above: with its time, folded, coloured by level."""
        head = f"{at or time.strftime('%H:%M:%S')} {label}"
        mark = "" if self._coloured or level == "info" else f"{level}: "
        folded = fold(mark + text, columns_of(self._descriptor), len(head))
        if self._coloured:
            head, folded = paint(head, DIM), paint(folded, COLOURS.get(level, PLAIN))
        return self.above(f"{head}{folded}\n".encode("utf-8", "replace"))

    def _erase(self) -> bytes:
        columns = columns_of(self._descriptor) + 1  # a terminal made narrower since has folded what is there
        rows = sum(1 + max(0, width - 1) // columns for width in self._widths)
        return ERASE + ROW_ABOVE * (rows - 1)

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            os.write(self._descriptor, data)
