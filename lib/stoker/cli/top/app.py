"""The screen of `stoker top`: a line of pages, the rows of one of them, the keys."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Static

from stoker.cli.pipeline.status import TITLE_WIDTH, folded_row
from stoker.cli.top.pages import PAGES, UTF_8, Row, rows_of
from stoker.cli.top.reading import Reading
from stoker.kit.terminal import BOLD, DIM, GREEN, NARROW, PLAIN, RED, YELLOW
from stoker.store.errors import StokerError

RENEW_S = 2.0
EXIT_INTERRUPTED = 130
NAMES = {PLAIN: "", BOLD: "bold", DIM: "dim", RED: "red", GREEN: "green", YELLOW: "yellow"}
STYLES = {colour: Style.parse(name) for colour, name in NAMES.items()}
ARROWS = ("←→", "↑↓") if UTF_8 else ("left right", "up down")
Line = tuple[str, str]  # text, colour


class Terminal(LinuxDriver):
    """Textual's driver, which takes every SIGCONT for the end of a Ctrl-Z, and then leaves the screen empty.

    After a `kill -STOP` it would begin a second time, and forget the terminal's modes of before.
    """

    is_on = has_begun = False

    def start_application_mode(self) -> None:
        if self.is_on:
            self.suspend_application_mode()
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self.has_begun:
            self._app.call_later(self._app.refresh, layout=True)
        self.is_on = self.has_begun = True

    def stop_application_mode(self) -> None:
        self.is_on = False
        super().stop_application_mode()


class Page(ScrollView):
    """The rows of a page, folded to its width. Only lines that differ are sent to the terminal."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("down", "scroll_down", "Scroll", key_display=ARROWS[1])]

    def __init__(self, rows: Callable[[int], Sequence[Row]]) -> None:
        super().__init__()
        self._rows_of_width = rows
        self._drawn: tuple[int, Sequence[Row]] = (0, ())
        self._shown: list[Line] = []

    def renew(self) -> None:
        width = self.scrollable_content_region.width
        rows = self._rows_of_width(max(NARROW, width - TITLE_WIDTH - 1))
        if (width, rows) == self._drawn:
            return
        self._drawn, before = (width, rows), self._shown
        self._shown = [
            (line, colour)
            for title, text, colour in rows
            for line in folded_row(title, text, width - 1).split("\n")
        ]
        self.virtual_size = Size(width, len(self._shown))
        for y, (line, old) in enumerate(zip_longest(self._shown, before)):
            if line != old:
                self.refresh_line(y)

    def on_resize(self) -> None:
        self.renew()

    def render_line(self, y: int) -> Strip:
        number = y + self.scroll_offset.y
        text, colour = self._shown[number] if number < len(self._shown) else ("", PLAIN)
        return Strip([Segment(text, STYLES[colour])]).crop_extend(0, self.size.width, STYLES[PLAIN])


class Top(App[None]):
    """The view; `return_code` says how it ended."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "#pages { height: 1; } Page { scrollbar-size-vertical: 1; scrollbar-gutter: stable; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(f"{number}", f"page({number - 1})", show=False) for number in range(1, len(PAGES) + 1)),
        Binding("left", "step(-1)", show=False, priority=True),
        Binding("right", "step(1)", "Page", key_display=f"1-{len(PAGES)} {ARROWS[0]}", priority=True),
        Binding("ctrl+z", "suspend_process", "Suspend"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", f"leave({EXIT_INTERRUPTED})", show=False, priority=True),
    ]

    def __init__(self, reading: Reading) -> None:
        super().__init__(driver_class=Terminal, ansi_color=True)
        self.theme = "ansi-dark"  # the terminal's own colours, on light ground as well
        self.animation_level = "none"
        self._reading, self._names, self._number = reading, list(PAGES), 0
        self._pages, self._page = Static(id="pages"), Page(self._rows)

    def compose(self) -> ComposeResult:
        yield self._pages
        yield self._page
        yield Footer(compact=True)

    def on_mount(self) -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._asked_to_end)
        # The thread that writes fails when the terminal is gone; what it should write would wait for ever.
        threading.excepthook = lambda _: os._exit(128 + signal.SIGHUP)
        self._page.focus()
        self.action_page(0)
        self.set_interval(RENEW_S, self._renew)

    def action_page(self, number: int) -> None:
        """Shows a page, from its begin."""
        self._number = number % len(self._names)
        names = [Text(f"{place} {name}") for place, name in enumerate(self._names, start=1)]
        names[self._number].stylize("reverse")
        self._pages.update(Text(" ").join(names))
        self._page.scroll_home(animate=False)
        self._page.renew()

    def action_step(self, by: int) -> None:
        """Shows the next page, or the one before."""
        self.action_page(self._number + by)

    def action_leave(self, code: int) -> None:
        """Ends the view with an exit code."""
        self.exit(return_code=code)

    def _renew(self) -> None:
        if not _is_there():  # SIGHUP may be ignored, as below nohup
            os._exit(128 + signal.SIGHUP)
        self._page.renew()

    def _rows(self, width: int) -> list[Row]:
        """Returns the rows of the page on show, as the files are now."""
        trouble: list[Row] = []
        try:
            self._reading.renew()
        except (OSError, StokerError) as error:
            trouble = [("cannot be read", str(error), YELLOW)]
        return [*trouble, *rows_of(self._names[self._number], self._reading, width)]

    def _asked_to_end(self, number: int, _: Any) -> None:
        if not _is_there():
            os._exit(128 + number)  # nothing is left to clean, and a write could wait for ever
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.action_leave, 128 + number)


def _is_there() -> bool:
    """Whether the terminal is."""
    try:
        os.get_terminal_size(0)
    except OSError:
        return False
    return True
