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

from stoker.kit.process import readable
from support.waiting import LONG_S

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
