"""The screen of `stoker top`: a line of pages, the rows of one of them, the keys."""

from __future__ import annotations

import os
import signal
import threading
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
from stoker.cli.top.pages import PAGES, UTF_8, Reading, rows_of
from stoker.kit.terminal import BOLD, DIM, GREEN, NARROW, PLAIN, RED, YELLOW

RENEW_S = 2.0
NAMES = {PLAIN: "", BOLD: "bold", DIM: "dim", RED: "red", GREEN: "green", YELLOW: "yellow"}
STYLES = {colour: Style.parse(name) for colour, name in NAMES.items()}
ARROWS = ("←→", "↑↓") if UTF_8 else ("left right", "up down")


class Terminal(LinuxDriver):
    """Textual's driver, which takes every SIGCONT for the end of a Ctrl-Z, and then leaves the screen empty.

    After a `kill -STOP` it would begin a second time, and forget the terminal's modes of before.
    """

    is_on = False

    def start_application_mode(self) -> None:
        if self.is_on:
            self.suspend_application_mode()
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._app.call_later(self._app.refresh, layout=True)
        self.is_on = True

    def stop_application_mode(self) -> None:
        self.is_on = False
        super().stop_application_mode()


class Page(ScrollView):
    """The rows of a page, folded to its width. Only lines that differ are sent to the terminal."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("down", "scroll_down", "Scroll", key_display=ARROWS[1])]

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self.number, self._reading = 0, reading
        self._lines: list[tuple[str, str]] = []  # text, colour

    def renew(self) -> None:
        """Shows the page as the files are now."""
        width = self.scrollable_content_region.width
        rows = rows_of([*PAGES][self.number], self._reading, max(NARROW, width - TITLE_WIDTH - 1))
        before, self._lines = (
            self._lines,
            [
                (line, colour)
                for title, text, colour in rows
                for line in folded_row(title, text, width - 1).split("\n")
            ],
        )
        self.virtual_size = Size(width, len(self._lines))
        for y, (line, old) in enumerate(zip_longest(self._lines, before)):
            if line != old:
                self.refresh_line(y)

    def on_resize(self) -> None:
        self.renew()

    def render_line(self, y: int) -> Strip:
        number = y + self.scroll_offset.y
        text, colour = self._lines[number] if number < len(self._lines) else ("", PLAIN)
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
        Binding("ctrl+c", f"end({signal.SIGINT:d})", show=False, priority=True),
    ]

    def __init__(self, reading: Reading) -> None:
        super().__init__(driver_class=Terminal, ansi_color=True)
        self.theme = "ansi-dark"  # the terminal's own colours, on light ground as well
        self.animation_level = "none"
        self._pages, self._page = Static(id="pages"), Page(reading)

    def on_load(self) -> None:
        """Takes the signals, before the terminal changes."""
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._asked_to_end)
        # The thread that writes fails when the terminal is gone; what it should write would wait for ever.
        threading.excepthook = lambda _: os._exit(128 + signal.SIGHUP)

    def compose(self) -> ComposeResult:
        yield self._pages
        yield self._page
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self._page.focus()
        self.action_page(0)
        self.set_interval(RENEW_S, self._renew)

    def action_page(self, number: int) -> None:
        """Shows a page, from its begin."""
        self._page.number = number % len(PAGES)
        names = [Text(f"{place} {name}") for place, name in enumerate(PAGES, start=1)]
        names[self._page.number].stylize("reverse")
        self._pages.update(Text(" ").join(names))
        self._page.scroll_home(animate=False)
        self._page.renew()

    def action_step(self, by: int) -> None:
        """Shows the next page, or the one before."""
        self.action_page(self._page.number + by)

    def action_end(self, number: int) -> None:
        """Ends the view as a signal does."""
        self.exit(return_code=128 + number)

    def _asked_to_end(self, number: int, _: Any) -> None:
        _end_if_gone()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.action_end, number)

    def _renew(self) -> None:
        _end_if_gone()  # SIGHUP may be ignored, as below nohup
        self._page.renew()


def _end_if_gone() -> None:
    """Ends the process where the terminal is gone: nothing is left to clean, and a write might never end."""
    try:
        os.get_terminal_size(0)
    except OSError:
        os._exit(128 + signal.SIGHUP)
