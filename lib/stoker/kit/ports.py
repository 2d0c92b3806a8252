"""Names the process that listens on a TCP port of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
LISTENS = "0A"  # the state of a socket in /proc/net/tcp
MOST_TEXT = 200


def listener_on(port: int) -> str:
    """Returns "process PID (COMMAND)"; "" where none listens, or none that this user may look at."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    for process in PROC.glob("[0-9]*") if wanted else ():
        with contextlib.suppress(OSError):  # of another user, or gone meanwhile
            if any(str(each.readlink()) in wanted for each in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return f"process {process.name} ({' '.join(words).strip()[:MOST_TEXT]})"
    return ""


def _inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if state == LISTENS and int(local.rpartition(":")[2], 16) == port:
                    yield rest[5]
