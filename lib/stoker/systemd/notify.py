"""What a daemon tells systemd of its state: sd_notify(3)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping

STATUS_BYTES = 200  # systemd cuts a longer line


class Notifier:
    """Notifies systemd of the daemon's state; outside systemd every call does nothing.

    Sends to the socket of NOTIFY_SOCKET, if set; never blocks, and a failure never stops a daemon.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.watchdog_interval_s: float | None = None  # set only where the watchdog is meant for this process
        self._socket: socket.socket | None = None
        address = environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return
        # "@name" is an abstract socket: its kernel address begins with a zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        interval, me = environ.get("WATCHDOG_USEC", ""), str(os.getpid())
        if interval.isdigit() and int(interval) > 0 and environ.get("WATCHDOG_PID", me) == me:
            self.watchdog_interval_s = int(interval) / 1e6

    def ready(self) -> None:
        """Reports that the start is complete."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Sets the line that `systemctl status` shows."""
        line = " ".join(text.split()).encode()[:STATUS_BYTES]
        self._send("STATUS=" + line.decode("utf-8", "ignore"))

    def watchdog(self) -> None:
        """Feeds systemd's watchdog; the loop calls this after a cycle of its work."""
        if self.watchdog_interval_s is not None:
            self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Reports that the daemon reads its file and its code anew, until `ready`."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Reports that the daemon begins to stop."""
        self._send("STOPPING=1")

    def extend_timeout(self, seconds: float) -> None:
        """Asks for so much time from now on where the unit's own time for a start or a stop is over."""
        self._send(f"EXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}")

    def _send(self, message: str) -> None:
        if self._socket is not None:
            # systemd may refuse for a moment while it re-executes itself; the next heartbeat follows soon.
            with contextlib.suppress(OSError):
                self._socket.sendto(
                    message.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, self._address
                )
