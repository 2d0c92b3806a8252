"""Judges the end of a worker, and whether its file is to blame: by evidence, never by a log's text."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stoker.kit.workers.parent import WorkerExit
from stoker.store.errors import FULL

# Signals that a process causes itself. SIGKILL is not among them: it comes from outside, from an operator or
# from the kernel short of memory, and convicts no file; SIGTERM is a stop.
_FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
_NO_MEMORY = ("MemoryError", "ArrowMemoryError")
# Failures of the machine, not of the file.
_MACHINE = ("ImportError", "ModuleNotFoundError")
_MACHINE_CODES = (69, 74, 75, 78)
SCARCE_BYTES = 64 << 20  # an abort with less memory to spare counts as a failed allocation
FULL_BYTES = 1 << 16  # a disk with less free is full, whatever the error's name

Kind = Literal[
    "done",
    "bad",
    "changed",
    "recycled",
    "outgrown",
    "out_of_memory",
    "over_memory",
    "killed",
    "stalled",
    "silent",
    "disk_full",
    "storage",
    "died",
    "again",
]


# The kind and the reason for the status of a finished worker.
_FINISHED: Mapping[str, tuple[Kind, str]] = {
    "bad": ("bad", ""),
    "changed": ("changed", "its content is not what the receipt says"),
    "mismatch": ("changed", "its content is not what the receipt says"),
    "recycled": ("recycled", "it had grown over its soft budget"),
    "outgrown": ("outgrown", "its shard set needs more room than there is"),
}


@dataclass(frozen=True)
class Evidence:
    """The state of the machine while a worker ran; None for an unknown value."""

    oom_killed: bool = False  # the kernel killed a process for lack of memory since the worker began
    headroom_bytes: int | None = None  # memory to spare when it ended
    free_bytes: int | None = None  # of the disk it writes to


NO_EVIDENCE = Evidence()


@dataclass(frozen=True)
class Outcome:
    """How a job ended: only `died` counts against the file.

    `recycled`, `outgrown` and `killed` (by hand) are no failures; `out_of_memory` is the machine's shortage,
    `over_memory` the worker's own size.
    """

    kind: Kind
    reason: str = ""  # for the event
    result: Mapping[str, Any] = field(default_factory=dict)  # of a finished worker
    error: str = ""  # the name of a failed worker's error type
    code: int | None = None  # exit code of a failed worker


def judge(ended: WorkerExit, evidence: Evidence = NO_EVIDENCE) -> Outcome:
    """Classifies the end of any corpus or shard worker."""
    result, error = ended.result, ended.error or {}
    if ended.kind == "finished" and result is not None:
        kind, reason = _FINISHED.get(str(result.get("status")), ("done", ""))
        return Outcome(kind, str(result["reason"]) if kind == "bad" else reason, result)
    kind, more = _cause(ended, error, evidence)
    reason = (ended.reason() or str(error.get("type", ""))) + more
    return Outcome(kind, reason, error=str(error.get("type", "")), code=ended.code)


def _cause(ended: WorkerExit, error: Mapping[str, Any], evidence: Evidence) -> tuple[Kind, str]:
    """Returns why a worker did not finish, and the evidence to add to its own words."""
    spare, free, number = evidence.headroom_bytes, evidence.free_bytes, error.get("errno")
    match ended.kind:
        # A dead mount can hang a worker as well as a bad file.
        case "over_memory" | "stalled" | "silent" as kind:
            return kind, ""
        case "killed" if ended.signal == signal.SIGKILL and evidence.oom_killed:
            return "out_of_memory", ": the kernel was out of memory"
        # Native code aborts where an allocation fails.
        case "killed" if ended.signal == signal.SIGABRT and spare is not None and spare < SCARCE_BYTES:
            return "out_of_memory", " with no memory to spare"
        case "killed":
            return "died" if ended.signal in _FATAL else "killed", ""
    if number in FULL:
        return "disk_full", ""
    if error.get("type") in _NO_MEMORY or number == errno.ENOMEM:
        return "out_of_memory", ""
    if free is not None and free < FULL_BYTES and (ended.code == 74 or error.get("exit_code") == 70):
        return "disk_full", " (the disk is full)"
    if ended.code == 74:
        return "storage", ""
    is_machines = ended.code in _MACHINE_CODES or error.get("type") in _MACHINE or "type" not in error
    return "again" if is_machines else "died", ""


def convicted(deaths: tuple[int, ...]) -> int | None:
    """Returns the row group at which workers died twice, None where there is none."""
    return next((group for group in deaths if deaths.count(group) > 1), None)
