"""What the end of a build worker says about its file, and what it does not."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stoker.kit.worker import WorkerExit

# The signals that a process earns by itself. SIGKILL is not among them: it comes from outside, from an
# operator or the kernel short of memory, and convicts no file; SIGTERM is a stop.
_FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Failures that speak of the machine, not of the file.
_MACHINE = ("MemoryError", "ArrowMemoryError", "ImportError", "ModuleNotFoundError")
_MACHINE_CODES = (69, 74, 75, 78)

Kind = Literal["done", "bad", "changed", "disk_full", "storage", "died", "again"]


@dataclass(frozen=True)
class Verdict:
    """How to go on: `died` counts against the file, `again` does not; `reason` is for the event."""

    kind: Kind
    reason: str = ""
    fields: Mapping[str, Any] | None = None


def judge(ended: WorkerExit) -> Verdict:
    """Classify any corpus or shard worker's end; `fields` is the result of one that finished."""
    if ended.kind == "finished" and ended.result is not None:
        status = ended.result.get("status")
        if status == "bad":
            return Verdict("bad", str(ended.result["reason"]), ended.result)
        if status in ("changed", "mismatch"):
            return Verdict("changed", "its content is not what the receipt says", ended.result)
        return Verdict("done", fields=ended.result)
    reason = ended.reason()
    if ended.kind == "killed":
        return Verdict("died" if ended.signal in _FATAL else "again", reason)
    if ended.kind == "timed_out":  # a dead mount hangs a worker as surely as a bad file could
        return Verdict("again", reason)
    error = ended.error or {}
    if error.get("errno") in _FULL:
        return Verdict("disk_full", reason)
    if ended.code == 74:
        return Verdict("storage", reason)
    if ended.code in _MACHINE_CODES or error.get("type") in _MACHINE or "type" not in error:
        return Verdict("again", reason)
    return Verdict("died", reason)


def convicted(deaths: tuple[int, ...]) -> int | None:
    """The row group at which workers died twice, None while no row group is to blame."""
    return next((group for group in deaths if deaths.count(group) > 1), None)
