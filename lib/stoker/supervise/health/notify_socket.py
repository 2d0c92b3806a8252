"""The notify socket: where a trainer's datagrams arrive."""

from __future__ import annotations

import socket
from pathlib import Path

from stoker.supervise.health.trainer_protocol import MOST_BYTES


class Inbox:
    """A bound datagram socket, made anew over whatever an earlier supervisor left at its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> list[bytes]:
        """Everything that has arrived, oldest first; never waits."""
        datagrams = []
        while True:
            try:
                datagrams.append(self._socket.recv(MOST_BYTES + 1))
            except BlockingIOError:
                return datagrams

    def close(self) -> None:
        """Close the socket and take its path away."""
        self._socket.close()
        self.path.unlink(missing_ok=True)
