"""How a worker ended, and what a wait status says about it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any, Literal

from stoker.store.errors import UnknownFormat

ExitKind = Literal["finished", "failed", "killed", "timed_out", "over_memory"]
# Why the daemon itself ended a worker: it said nothing, it neither spoke nor computed, it took too much.
Cause = Literal["", "silent", "stalled", "over_memory"]


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended; killed = by a signal nobody here sent, timed_out = past a deadline, over_memory =
    it took more memory than it may. A warm worker's finished task ends so too, and the worker lives on.

    max_rss_bytes is never below the size of the daemon that started it: Linux counts from before the exec;
    of a warm worker's task it is the largest sample. `cause` tells which deadline it was.
    """

    kind: ExitKind
    code: int | None
    signal: int | None
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    max_rss_bytes: int
    wall_s: float = 0.0
    stderr_tail: tuple[str, ...] = ()
    cause: Cause = ""

    def reason(self) -> str:
        """One phrase for an event or a log line."""
        if self.kind == "finished":
            return "finished"
        if self.kind == "over_memory":
            return f"it took {self.max_rss_bytes >> 20} MiB of memory, more than it may"
        if self.kind == "timed_out" and self.cause == "stalled":
            return f"no word and no CPU time for too long ({self.wall_s:.0f} s at work)"
        if self.kind == "timed_out":
            return f"no end or no word within its deadline ({self.wall_s:.0f} s)"
        if self.signal is not None:
            return f"killed by {signal_name(self.signal)}"
        return str(self.error["message"]) if self.error else f"exit code {self.code}"


def raise_unknown_format(ended: WorkerExit) -> None:
    """Raise what a worker ended with where it met a format version that is not known here: a daemon that
    tried again, or took it for damage, would be wrong each time."""
    error = ended.error or {}
    if error.get("type") == UnknownFormat.__name__:
        raise UnknownFormat(str(error["message"]))


def signal_name(signum: int) -> str:
    """SIGKILL for 9; real-time signals, which have no name, by number."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def classify(
    status: int, *, timed_out: bool, result: dict[str, Any] | None, error: dict[str, Any] | None
) -> tuple[ExitKind, int | None, int | None]:
    """(kind, exit code, signal) of a wait status; exit 0 without a result is a failure."""
    if os.WIFSIGNALED(status):
        return ("timed_out" if timed_out else "killed"), None, os.WTERMSIG(status)
    code = os.WEXITSTATUS(status)
    if code == 0 and result is not None and error is None:
        return "finished", 0, None
    return ("timed_out" if timed_out else "failed"), code, None
