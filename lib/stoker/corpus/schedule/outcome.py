"""Judges the end of a worker by evidence, never by a log's text; steps back where memory runs out."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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

Finished = Literal["done", "bad", "changed", "recycled", "outgrown"]
Ended = Literal[
    "out_of_memory", "over_memory", "killed", "stalled", "silent", "disk_full", "storage", "died", "again"
]
Kind = Finished | Ended

# The kind and the reason for the status of a finished worker.
_FINISHED: Mapping[str, tuple[Finished, str]] = {
    "bad": ("bad", ""),
    "changed": ("changed", "its content is not what the receipt says"),
    "mismatch": ("changed", "its content is not what the receipt says"),
    "recycled": ("recycled", "it had grown over its soft budget"),
    "outgrown": ("outgrown", "its shard set needs more space than there is"),
}


@dataclass(frozen=True)
class Evidence:
    """The state of the machine while a worker ran; None for an unknown value."""

    oom_killed: bool = False  # the kernel killed a process for lack of memory since the worker began
    headroom_bytes: int | None = None  # memory to spare when it ended
    free_bytes: int | None = None  # of the disk it writes to


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


def judge(ended: WorkerExit, evidence: Evidence) -> Outcome:
    """Classifies the end of any corpus or shard worker."""
    result, error = ended.result, ended.error or {}
    if ended.kind == "finished" and result is not None:
        status, reason = _FINISHED.get(str(result.get("status")), ("done", ""))
        return Outcome(status, str(result["reason"]) if status == "bad" else reason, result)
    kind, more = _cause(ended, error, evidence)
    reason = (ended.reason() or str(error.get("type", ""))) + more
    return Outcome(kind, reason, error=str(error.get("type", "")), code=ended.code)


def _cause(ended: WorkerExit, error: Mapping[str, Any], evidence: Evidence) -> tuple[Ended, str]:
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


READ_ROWS = (250, 60, 15)  # the first reads fastest and peaks lowest; the last holds a 100 MB document too
SMALLEST = len(READ_ROWS) - 1
ALONE = SMALLEST + 1  # a file's need beyond the smallest batches: no other build at the same time
CLIMB_AFTER_S = 600.0  # on a rung, before a build that ends well leads up
REST_S = 5.0  # the shortest pause


@dataclass(frozen=True)
class Ladder:
    """The machine's rung: `step` counts down from the top, `since` is the monotonic time of the last step."""

    step: int = 0
    since: float = 0.0
    paused: bool = False

    @property
    def rows(self) -> int:
        """The index into READ_ROWS."""
        return min(self.step, SMALLEST)

    def builders(self, most: int) -> int:
        """Returns how many may build at once, of at most `most`; 0 during a pause."""
        return 0 if self.paused else max(1, most >> max(0, self.step - SMALLEST))

    def down(self, began_at: int, most: int, now: float) -> Ladder:
        """Returns the ladder one rung down, or paused at the end, after a worker ran out of memory.

        A worker that began on a higher rung (`began_at`) is no evidence about this rung.
        """
        if began_at < self.step or self.paused:
            return self
        is_last = self.rows == SMALLEST and self.builders(most) == 1
        return Ladder(self.step + (not is_last), now, paused=is_last)

    def succeeded(self, now: float) -> Ladder:
        """Returns the ladder after a build that ended well: one rung up if enough time has passed."""
        if self.step == 0 or self.paused or now - self.since < CLIMB_AFTER_S:
            return self
        return Ladder(self.step - 1, now)

    def rested(self, headroom_bytes: int, needed_bytes: int, now: float) -> Ladder:
        """Returns the ladder without its pause once memory has room for a builder again."""
        if self.paused and headroom_bytes >= needed_bytes and now - self.since >= REST_S:
            return replace(self, paused=False, since=now)
        return self


@dataclass(frozen=True)
class Attempt:
    """The conditions at the start of a build."""

    rows: int  # index into READ_ROWS
    alone: bool  # no other build ran at the same time
    headroom_bytes: int  # memory to spare before it
    step: int = 0  # of the ladder

    def is_blamed(self, hard_bytes: int) -> bool:
        """Whether the file is to blame when memory ran out: every other explanation is excluded."""
        return self.rows == SMALLEST and self.alone and self.headroom_bytes > hard_bytes
