"""A terminal in tests: a command runs on a real pty, and what a person saw is kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyte

from stoker.kit.process import readable
from support.waiting import LONG_S, wait_until

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Screen:
    """`lines` are those that scrolled by or stand there; `footers` the live lines that were written over.

    Knows what Stoker writes: text, styles, carriage return, line feed, erasing this row and the one above.
    """

    columns: int
    lines: list[str] = field(default_factory=list)
    footers: list[str] = field(default_factory=list)
    last: str = ""
    styled: bool = False

    def take(self, text: str) -> None:
        """Show what was written."""
        self.styled = self.styled or bool(_STYLE.search(text))
        for part in re.split(r"(\r\n|\r\x1b\[2K|\x1b\[A\x1b\[2K)", _STYLE.sub("", text)):
            if part == "\r\n":
                self.lines.append(self.last)
                self.last = ""
            elif part == "\r\x1b[2K":
                if self.last:
                    self.footers.append(self.last)
                self.last = ""
            elif part == "\x1b[A\x1b[2K":
                self.footers.append(self.lines.pop())
            else:
                assert "\x1b" not in part, f"an escape that no terminal was asked to know: {part!r}"
                self.last += part


def run_on_terminal(
    command: Sequence[str], *, columns: int = 100, environ: Mapping[str, str] | None = None
) -> tuple[int, Screen]:
    """Run a command to its end on a terminal; its exit code and what was to be seen."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm", **(environ or {})}
    process = subprocess.Popen(list(command), stdin=its, stdout=its, stderr=its, env=env)
    os.close(its)
    said = b""
    with contextlib.suppress(OSError):  # EIO: nobody has the terminal open any more
        while readable(ours, timeout_s=LONG_S) and (piece := os.read(ours, 1 << 16)):
            said += piece
    os.close(ours)
    screen = Screen(columns)
    screen.take(said.decode())
    return process.wait(LONG_S), screen


def _without_a_size() -> dict[str, str]:
    """The environment as a terminal gives it: pytest-xdist sets a size, which wins over the terminal's."""
    return {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}


class FullScreen:
    """A command with a terminal for itself, which it may fill; `screen` is what a person sees."""

    def __init__(
        self, command: Sequence[str], columns: int, rows: int, *, is_its_own: bool = True, **environ: str
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self.modes = set(self.screen.mode)  # of the terminal: cursor, second screen, pasting, ...
        self.taken = b""
        self._stream = pyte.ByteStream(self.screen)
        self.ours, self.its = pty.openpty()
        self.resize(columns, rows)
        self.stty = termios.tcgetattr(self.its)
        self.process = subprocess.Popen(
            # Taking the terminal away sends a SIGHUP to those whose own it is.
            ["setsid", *(["--ctty"] if is_its_own else []), *command],
            stdin=self.its,
            stdout=self.its,
            stderr=self.its,
            env={**_without_a_size(), "TERM": "xterm-256color", **environ},
        )

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def look(self) -> str:
        """What is on the screen, once all that was written is read."""
        while readable(self.ours, timeout_s=0.05):
            piece = os.read(self.ours, 1 << 16)
            self.taken += piece
            self._stream.feed(piece)
        return "\n".join(self.screen.display)

    def wait_for(self, text: str) -> str:
        """Wait until the text is on the screen, and return all that is on it."""
        wait_until(lambda: text in self.look(), what=f"{text!r} on the screen")
        return self.look()

    def close(self) -> None:
        """Take the terminal away."""
        os.close(self.its)
        os.close(self.ours)
