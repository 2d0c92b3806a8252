"""The journal's native protocol: an entry with fields is one datagram; and a trainer's output in its entries.

The guard imports this module: standard library only.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Callable, Mapping

SOCKET = "/run/systemd/journal/socket"
VALUE_BYTES = 48 << 10  # fits a datagram; a longer value is cut
PART = VALUE_BYTES // 4  # characters of a line in one entry: any of them fit
# journald takes 10,000 lines of a unit in 30 s, and drops more with the supervisor's own: these get room.
BURST_LINES, BURST_S = 5000, 30.0
BAR_S = 60.0  # between two lines of progress bars
_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a last carriage return may be followed by a line feed
# ECMA-48's sequences, and what else no terminal prints: journalctl would show a blob.
_ESCAPES = re.compile(
    rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f]"
)
_RANK = re.compile(rb"\[[a-z_]+(\d+)\]:")  # torchrun --tee marks each rank's lines


class Journal:
    """Sends entries, and never waits for the journal."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def send(self, entry: Mapping[str, str]) -> bool:
        """Returns whether the journal took the entry; it may be full or restarting."""
        try:
            self._socket.sendto(datagram(entry), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, SOCKET)
        except OSError:
            return False
        return True


class JournalOutput:
    """Passes a trainer's output on, a line an entry, with the launch and, where it is known, the rank.

    Of progress bars, whose text a carriage return rewrites, one line a minute. What the journal has no room
    for is dropped, with a count.
    """

    def __init__(self, kept_at: str, environ: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._journal, self._kept_at, self._clock = Journal(), kept_at, clock
        self._fields = {"PRIORITY": "6", "SYSLOG_IDENTIFIER": "stoker-trainer"}
        names = ("STOKER_PIPELINE", "STOKER_LAUNCH", "STOKER_RANK")
        self._fields |= {name: environ[name] for name in names if environ.get(name)}
        self._rest, self._is_bar, self._bar_at, self._dropped = b"", False, -BAR_S, 0
        self._burst_at, self._lines = -BURST_S, 0

    def write(self, data: bytes) -> None:
        """Sends the lines that are whole now."""
        data, at = self._rest + data, 0
        for end in _END.finditer(data):
            is_rewritten = end[0] == b"\r"
            self._pass(data[at : end.start()], is_bar=self._is_bar or is_rewritten)
            self._is_bar, at = is_rewritten, end.end()
        self._rest = data[at:]
        if len(self._rest) > VALUE_BYTES:
            self.end()

    def end(self) -> None:
        """Sends what has no end of line."""
        self._pass(self._rest.rstrip(b"\r"), is_bar=self._is_bar)
        self._rest = b""

    def _pass(self, line: bytes, *, is_bar: bool) -> None:
        line = _ESCAPES.sub(b"", line).rstrip()
        if not line:
            return
        now = self._clock()
        if is_bar:
            if now - self._bar_at < BAR_S:
                return
            self._bar_at = now
        if now - self._burst_at >= BURST_S:
            self._burst_at, self._lines = now, 0
        self._lines += 1
        if self._lines > BURST_LINES:
            self._dropped += len(line)
            return
        if self._dropped and self._send(f"[stoker: {self._dropped} bytes are only in {self._kept_at}]", {}):
            self._dropped = 0
        rank = _RANK.match(line)
        more = {"STOKER_RANK": rank[1].decode()} if rank else {}
        text = line.decode("utf-8", "replace")
        for start in range(0, len(text), PART):
            part = text[start : start + PART]
            if not self._send(part, more):
                self._dropped += len(part.encode())

    def _send(self, text: str, more: Mapping[str, str]) -> bool:
        return self._journal.send({"MESSAGE": text, **self._fields, **more})


def datagram(entry: Mapping[str, str]) -> bytes:
    """Returns the entry in the journal's native form: KEY=value lines.

    A value with newlines has its length in front instead of "=".
    """
    data = b""
    for name, value in entry.items():
        raw = value.encode("utf-8", "replace")[:VALUE_BYTES]
        if len(data) + len(raw) > 4 * VALUE_BYTES:
            break
        if b"\n" in raw:
            data += name.encode() + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n"
        else:
            data += name.encode() + b"=" + raw + b"\n"
    return data


def is_journal(descriptor: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a descriptor leads to the journal.

    JOURNAL_STREAM names the device and inode of the stream from systemd; after a redirection they differ.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
