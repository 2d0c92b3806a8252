"""Names the process that listens on a TCP port of this machine."""

from __future__ import annotations

import contextlib

MOST_TEXT = 200


def listener_on(port: int) -> str:
    """Returns "process PID (COMMAND)"; "" where none listens, or none that this user may look at."""
    import psutil  # noqa: PLC0415 - for an error alone

    with contextlib.suppress(OSError, psutil.Error):  # of another user, or gone meanwhile
        for each in psutil.net_connections("tcp"):
            if each.pid and each.laddr and (each.status, each.laddr.port) == (psutil.CONN_LISTEN, port):
                words = psutil.Process(each.pid).cmdline()
                return f"process {each.pid} ({' '.join(words).strip()[:MOST_TEXT]})"
    return ""
