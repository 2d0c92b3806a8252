"""Terminal output: events as sentences, folded text, and live lines that are rewritten in place.

Live lines are written only to a terminal, never to a file, a pipe, the journal or a terminal with TERM=dumb.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.config.units import format_bytes, format_count, format_duration
from stoker.kit.event_types import event_type

STDERR = 2
ERASE, ROW_ABOVE = b"\r\x1b[2K", b"\x1b[A\x1b[2K"  # erase this row; go up and erase that row: ECMA-48
NARROW, USUAL = 20, 80
BOLD, DIM, RED, GREEN, YELLOW, PLAIN = "1", "2", "31", "32", "33", "0"
COLOURS = {"info": PLAIN, "warning": YELLOW, "error": RED}
HIDDEN = frozenset({"time", "seq", "event", "level", "pipeline", "daemon", "prev", "v"})
MEANING = ("message", "reason")  # fields that are sentences themselves
PHRASES = {
    "steps": "all its steps are done",
    "data_exhausted": "the data is used up",
    "early_stop": "the held-out loss improves no more",
    "trainer": "the trainer ended by itself, without an error",
}  # why a run finished
SUM_DIGITS = 12
_SUM = re.compile(rf"\b([0-9a-f]{{{SUM_DIGITS}}})[0-9a-f]{{28,52}}\b")  # SHA-1 and SHA-256
AS_USUAL = (("dropped", 0), ("exit_code", 0))  # fields not worth showing
_UNIT = re.compile("_bytes$|(?<!_per)_s$")  # dropped from a field's name: the value is shown with its unit
_OPTIONAL = re.compile(r"\[([^][]*)\]")


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


class _Words:
    """A field formatted for a person; a format specification is the noun that a number counts."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def __format__(self, noun: str) -> str:
        return f"{self!s} {noun}{'' if self.value == 1 else 's'}" if noun else str(self)

    def __str__(self) -> str:
        name, value = self.name, self.value
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int | float):
            return _number(name, value)
        if isinstance(value, list | tuple):
            return ", ".join(str(_Words(name, each)) for each in value) or "none"
        if isinstance(value, dict):
            return json.dumps(value, ensure_ascii=False, default=str)
        text = str(value)
        if name == "message":
            return PHRASES.get(text, text)
        return text.replace("_", " ") if name == "reason" and re.fullmatch("[a-z_]+", text) else text


def in_words(name: str, value: Any) -> tuple[str, str]:
    """Returns a field's name and value as a person reads them: `wall_s`, 90 is `wall`, `1 min 30 s`."""
    return _UNIT.sub("", name).replace("_", " "), str(_Words(name, value))


def _number(name: str, value: float) -> str:
    if name.endswith("_per_s"):
        return format_count(value)
    if name.endswith("_s"):
        return format_duration(value)
    if name in ("size", "bytes") or name.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:,.4f}"
    return str(value) if name in ("pid", "pids") else f"{value:,}"


def sentence(event: Mapping[str, Any]) -> str:
    """Returns the event as one line that is safe for a terminal: file names may hold line breaks.

    What is wrong and says no more of itself is followed by what the table of event types says it means.
    """
    word = str(event.get("event"))
    known = event_type(word)
    fields = {
        name: _Words(name, value)
        for name, value in event.items()
        if name not in HIDDEN and value not in (None, "", []) and (name, value) not in AS_USUAL
    }
    headline = known.headline if known else word.replace("_", " ")
    chosen = known.line if known else ""
    if known and known.line_unproven and "how" not in event:
        chosen = known.line_unproven
    template = _OPTIONAL.sub(lambda part: _filled(part[1], fields), chosen)
    text = _filled(template, fields).format_map(fields) or _generic(headline, fields)
    return harmless(cut_sums(f"{text}. {means}" if (means := meaning(event)) else text))


def meaning(event: Mapping[str, Any]) -> str:
    """Returns what the table says an event means that is bad and says no more of itself; else ""."""
    known = event_type(str(event.get("event")))
    if known is None or known.level == "info" or any(event.get(name) for name in MEANING):
        return ""
    return re.sub(r"\{(\w+)\}", lambda named: str(event.get(named[1], named[1])), known.meaning)


def _filled(template: str, fields: Mapping[str, _Words]) -> str:
    """Returns the template, or an empty string where one of its fields is missing."""
    return template if set(re.findall(r"\{(\w+)", template)) <= fields.keys() else ""


def _generic(headline: str, fields: Mapping[str, _Words]) -> str:
    text = headline + (f": {fields['path']}" if "path" in fields else "")
    meaning = "; ".join(str(fields[name]) for name in reversed(MEANING) if name in fields)
    rest = [
        " ".join(in_words(name, value.value))
        for name, value in fields.items()
        if name not in (*MEANING, "path")
    ]
    more = ", ".join(filter(None, [meaning, *rest]))
    return f"{text}: {more}" if more else text


def cut_sums(text: str) -> str:
    """Returns the text with SHA-1 and SHA-256 sums cut to their first digits."""
    return _SUM.sub(r"\1", text)


def harmless(text: str) -> str:
    """Returns the text on one line, with every unprintable character escaped: a terminal might obey it."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
