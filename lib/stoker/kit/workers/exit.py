"""The end of a worker, by evidence."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any, Literal

from stoker.store.errors import UnknownFormat

# The bound for which the daemon ended a worker: no message, neither message nor CPU time, too much memory.
Bound = Literal["silent", "stalled", "over_memory"]
ExitKind = Literal["finished", "failed", "killed", Bound]


@dataclass(frozen=True)
class WorkerExit:
    """The end of a worker, or of a task of a reusable worker; `killed`: by a signal not sent by the daemon.

    `max_rss_bytes` is the highest value that the daemon saw.
    """

    kind: ExitKind
    code: int | None = None
    signal: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    max_rss_bytes: int = 0
    wall_s: float = 0.0
    stderr_tail: tuple[str, ...] = ()

    def reason(self) -> str:
        """Returns a phrase for an event or a log line."""
        match self.kind:
            case "finished":
                return "finished"
            case "over_memory":
                return f"it took {self.max_rss_bytes >> 20} MiB of memory, more than it may"
            case "stalled":
                return f"no word and no CPU time for too long ({self.wall_s:.0f} s at work)"
            case "silent":
                return f"no end or no word within its deadline ({self.wall_s:.0f} s)"
        if self.signal is not None:
            return f"killed by {signal_name(self.signal)}"
        return str(self.error["message"]) if self.error else f"exit code {self.code}"


def raise_unknown_format(ended: WorkerExit) -> None:
    """Raises UnknownFormat again if a worker ended with it.

    A daemon that tried again, or treated the file as damaged, would be wrong each time.
    """
    error = ended.error or {}
    if error.get("type") == UnknownFormat.__name__:
        raise UnknownFormat(str(error["message"]))


def signal_name(signum: int) -> str:
    """Returns the signal's name (SIGKILL for 9); real-time signals have no names and give "signal N"."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
