"""What the end of a worker says about its file, and what it does not: by evidence, never by a log's text."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from stoker.kit.workers.parent import WorkerExit
from stoker.store.errors import FULL

# The signals that a process earns by itself. SIGKILL is not among them: it comes from outside, from an
# operator or the kernel short of memory, and convicts no file; SIGTERM is a stop.
_FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
_NO_MEMORY = ("MemoryError", "ArrowMemoryError")
# Failures that speak of the machine, not of the file.
_MACHINE = ("ImportError", "ModuleNotFoundError")
_MACHINE_CODES = (69, 74, 75, 78)
SCARCE_BYTES = 64 << 20  # an abort with less than this to spare is taken for a failed allocation
FULL_BYTES = 1 << 16  # less than that free is a full disk, whatever the error was called

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


@dataclass(frozen=True)
class Evidence:
    """What the machine says about a worker's time; None for what is not known.

    `oom_killed`: the kernel killed for want of memory since it began. `headroom_bytes`: what could still be
    taken when it ended. `free_bytes`: of the disk it writes to.
    """

    oom_killed: bool = False
    headroom_bytes: int | None = None
    free_bytes: int | None = None


NO_EVIDENCE = Evidence()


@dataclass(frozen=True)
class Outcome:
    """How a job ended: only `died` counts against the file; `reason` is for the event.

    `result` is what a finished worker returned, `error` (a type's name) and `code` are a failed one's.

    `recycled`, `outgrown` and `killed` (by hand) are no failures; `out_of_memory` is the machine's,
    `over_memory` the worker's own size; `doubtful`: a death that a vanished file or disk explains as well.
    """

    kind: Kind
    reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    doubtful: bool = False
    error: str = ""
    code: int | None = None


def judge(ended: WorkerExit, evidence: Evidence = NO_EVIDENCE) -> Outcome:
    """Classify any corpus or shard worker's end."""
    if ended.kind == "finished" and ended.result is not None:
        return _finished(ended.result)
    outcome = _unfinished(ended, evidence)
    return replace(outcome, error=str((ended.error or {}).get("type", "")), code=ended.code)


def _unfinished(ended: WorkerExit, evidence: Evidence) -> Outcome:
    reason = ended.reason()
    match ended.kind:
        case "killed":
            return _killed(ended.signal, reason, evidence)
        case "over_memory" | "stalled" | "silent" as kind:  # a dead mount hangs as surely as a bad file could
            return Outcome(kind, reason)
    return _failed(ended, reason, evidence)


def _finished(result: Mapping[str, Any]) -> Outcome:
    match result.get("status"):
        case "bad":
            return Outcome("bad", str(result["reason"]), result)
        case "changed" | "mismatch":
            return Outcome("changed", "its content is not what the receipt says", result)
        case "recycled":
            return Outcome("recycled", "it had grown over its soft budget", result)
        case "outgrown":
            return Outcome("outgrown", "its shard set needs more room than there is", result)
    return Outcome("done", result=result)


def _killed(signum: int | None, reason: str, evidence: Evidence) -> Outcome:
    if signum == signal.SIGKILL and evidence.oom_killed:
        return Outcome("out_of_memory", f"{reason}: the kernel was out of memory")
    scarce = evidence.headroom_bytes is not None and evidence.headroom_bytes < SCARCE_BYTES
    if signum == signal.SIGABRT and scarce:  # what native code does where an allocation fails
        return Outcome("out_of_memory", f"{reason} with no memory to spare")
    if signum in _FATAL:
        return Outcome("died", reason, doubtful=signum == signal.SIGBUS)
    return Outcome("killed", reason)


def _failed(ended: WorkerExit, reason: str, evidence: Evidence) -> Outcome:
    error = ended.error or {}
    if error.get("errno") in FULL:
        return Outcome("disk_full", reason)
    if error.get("type") in _NO_MEMORY or error.get("errno") == errno.ENOMEM:
        return Outcome("out_of_memory", reason or str(error.get("type")))
    full = evidence.free_bytes is not None and evidence.free_bytes < FULL_BYTES
    if full and (ended.code == 74 or error.get("exit_code") == 70):
        return Outcome("disk_full", f"{reason} (the disk is full)")
    if ended.code == 74:
        return Outcome("storage", reason)
    if ended.code in _MACHINE_CODES or error.get("type") in _MACHINE or "type" not in error:
        return Outcome("again", reason)
    return Outcome("died", reason)


def convicted(deaths: tuple[int, ...]) -> int | None:
    """The row group at which workers died twice, None while no row group is to blame."""
    return next((group for group in deaths if deaths.count(group) > 1), None)
