"""Before a launch: nothing of an earlier one may be left, neither a lock nor a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stoker.kit.process.process_id import ProcessId

LOCK_GRACE_S = 10.0  # a guard needs its own stop time, and a little more to sweep up


Cleaning = Literal[
    "clear", "wait", "TERM", "KILL"
]  # what to do about leftovers now; the last two are signals


@dataclass(frozen=True)
class Leftovers:
    """What is left of an earlier launch: whether someone holds one of its locks, and its live processes.

    `guarded`: the trainer's lock is held, so a guard (or a sealer) is still seeing to its end.
    """

    guarded: bool
    rank0_held: bool
    processes: tuple[ProcessId, ...]

    @property
    def none(self) -> bool:
        return not (self.guarded or self.rank0_held or self.processes)


def decide(left: Leftovers, *, waited_s: float, asked: bool, stop_time_s: float) -> Cleaning:
    """Wait for a guard at work, ask the unguarded to save and end, kill what outlives its stop time."""
    if left.none:
        return "clear"
    patience_s = stop_time_s + (LOCK_GRACE_S if left.guarded else 0.0)
    if left.processes and waited_s >= patience_s:
        return "KILL"
    if left.processes and not left.guarded and not asked:
        return "TERM"
    return "wait"
