"""A daemon's log: one fact per line, an event word and key=value; native journal fields under systemd."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any

from stoker.kit.terminal.live_lines import Footer
from stoker.kit.terminal.sentences import sentence
from stoker.store.record import utc_now

JOURNAL_SOCKET = "/run/systemd/journal/socket"
JOURNAL_BYTES = 48 << 10  # fits a datagram; a longer value is cut, the event log has the whole value
PRIORITIES = {"info": 6, "warning": 4, "error": 3}  # syslog(3)
_PLAIN = re.compile(r"[\w./:@%+,=*\[\]-]+")


class Log:
    """Writes to the journal when standard error is connected to the journal, else lines to standard error.

    A terminal gets sentences, any other output key=value. A line that cannot be written is lost in silence: a
    failing log must not stop a daemon.
    """

    def __init__(self, daemon: str, pipeline: str, environ: Mapping[str, str] = os.environ) -> None:
        self.daemon, self.pipeline = daemon, pipeline
        self._tty = sys.stderr.isatty()
        self.footer = Footer(environ=environ)
        self._journal: socket.socket | None = None
        if _stderr_is_journal(environ):
            self._journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def info(self, event: str, message: str = "", **fields: Any) -> None:
        """Writes a line about normal work."""
        self.write("info", event, message, fields)

    def warning(self, event: str, message: str = "", **fields: Any) -> None:
        """Writes a line about a failure that the daemon handled."""
        self.write("warning", event, message, fields)

    def error(self, event: str, message: str = "", **fields: Any) -> None:
        """Writes a line about a failure that needs an operator."""
        self.write("error", event, message, fields)

    def write(self, level: str, event: str, message: str, fields: Mapping[str, Any]) -> None:
        """Writes one line; level is info, warning or error."""
        text = format_fields({**({"message": message} if message else {}), **fields})
        if self._journal is not None and self._to_journal(level, event, text, fields):
            return
        if self._tty:
            data = self.footer.line(sentence({"event": event, "message": message, **fields}), level)
        else:
            who = f"daemon={self.daemon} pipeline={self.pipeline}"
            line = f"{utc_now()} level={level} {who} event={event} {text}"
            data = line.rstrip().encode("utf-8", "replace") + b"\n"
        try:
            os.write(2, data)
        except OSError:  # the terminal or the pipe is gone; the event log still has the event
            return

    def _to_journal(self, level: str, event: str, text: str, fields: Mapping[str, Any]) -> bool:
        assert self._journal is not None
        entry = {
            "MESSAGE": f"{event} {text}".rstrip(),
            "PRIORITY": str(PRIORITIES[level]),
            "SYSLOG_IDENTIFIER": "stoker-" + self.daemon.replace("_", "-"),
            "STOKER_EVENT": event,
            "STOKER_PIPELINE": self.pipeline,
            "STOKER_DAEMON": self.daemon,
        }
        for name, value in fields.items():
            entry.setdefault("STOKER_" + re.sub(r"\W", "_", name).upper(), _words(value))
        try:
            data = journal_datagram(entry)
            self._journal.sendto(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, JOURNAL_SOCKET)
        except OSError:  # full or restarting: standard error is connected to the journal too
            return False
        return True


def format_fields(fields: Mapping[str, Any]) -> str:
    """Returns key=value pairs on one line; a value that is not a plain word is quoted as a JSON string."""
    return " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())


def journal_datagram(entry: Mapping[str, str]) -> bytes:
    """Returns the entry in the journal's native form: KEY=value lines.

    A value with newlines has its length in front instead of "=".
    """
    data = b""
    for name, value in entry.items():
        raw = value.encode("utf-8", "replace")[:JOURNAL_BYTES]
        if len(data) + len(raw) > 4 * JOURNAL_BYTES:
            break
        if b"\n" in raw:
            data += name.encode() + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n"
        else:
            data += name.encode() + b"=" + raw + b"\n"
    return data


def _words(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None or isinstance(value, bool | int | list | tuple | dict):
        return json.dumps(value, separators=(",", ":"), default=str)
    return str(value)


def _quoted(value: Any) -> str:
    words = _words(value)
    if _PLAIN.fullmatch(words):
        return words
    # File names come from outside: characters that a terminal would obey or treat as a line end are escaped.
    quoted = json.dumps(words, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in quoted)


def _stderr_is_journal(environ: Mapping[str, str]) -> bool:
    """Returns whether standard error is the journal.

    JOURNAL_STREAM names the device and inode of the stream from systemd; after a redirection they differ.
    """
    try:
        stderr = os.fstat(2)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{stderr.st_dev}:{stderr.st_ino}"
