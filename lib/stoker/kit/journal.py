"""The journal's native protocol: an entry with fields is one datagram.

The guard imports this module: standard library only.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping

SOCKET = "/run/systemd/journal/socket"
VALUE_BYTES = 48 << 10  # fits a datagram; a longer value is cut


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
