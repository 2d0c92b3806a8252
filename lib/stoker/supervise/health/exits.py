"""Classifies the end of a launch by exit code, signal, and whether a stop was asked."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from enum import StrEnum

from stoker.kit.process import signal_name
from stoker.supervise.health.guarded import GuardedEnd


class ExitClass(StrEnum):
    """The class of a launch's end, which decides about the next launch and labels the restart metric."""

    FINISHED = "finished"
    STOPPED = "stopped_as_asked"
    BAD_DATA = "bad_data"
    STORAGE = "storage"
    TRY_AGAIN = "try_again"
    WRONG_CONFIG = "wrong_config"
    KILLED = "killed"
    CRASHED = "crashed"
    HUNG = "hung"
    GUARD_LOST = "guard_lost"


_BY_CODE = {
    0: ExitClass.FINISHED,
    65: ExitClass.BAD_DATA,
    74: ExitClass.STORAGE,
    75: ExitClass.TRY_AGAIN,
    78: ExitClass.WRONG_CONFIG,
}


@dataclass(frozen=True)
class Exit:
    kind: ExitClass
    detail: str  # half a sentence for log and status
    doubts_data: bool = False  # the sets that the trainer read must be proven before the next launch

    @property
    def is_blameless(self) -> bool:
        """A full disk, exit code 75 (try again) and an asked stop are no evidence against the run."""
        return self.kind in (ExitClass.STORAGE, ExitClass.TRY_AGAIN, ExitClass.STOPPED)

    @property
    def gives_up_with(self) -> int:
        return {ExitClass.BAD_DATA: 65, ExitClass.WRONG_CONFIG: 78}.get(self.kind, 70)


def classify(end: GuardedEnd, *, is_asked: bool, is_hung: bool, last_words: str | None = None) -> Exit:
    """Returns the class of an end; code 0 without an asked stop is `finished`, if its checkpoint agrees.

    `is_asked`: the supervisor sent a stop; `is_hung`: it did so because the trainer showed no progress.
    """
    words = f": {last_words}" if last_words else ""
    if is_hung:
        return Exit(ExitClass.HUNG, "nothing moved in it any more, so it was stopped")
    if end.signum == signal.SIGBUS:
        return Exit(ExitClass.BAD_DATA, "killed by SIGBUS: a mapped file is not all there", doubts_data=True)
    if end.signum is not None:
        return Exit(ExitClass.KILLED, f"killed by {signal_name(end.signum)}{words}")
    if end.code is None:
        return Exit(ExitClass.GUARD_LOST, "its guard ended before it could say how the trainer did")
    if end.code == 0 and is_asked:
        return Exit(ExitClass.STOPPED, "saved and stopped as asked")
    kind = _BY_CODE.get(end.code, ExitClass.CRASHED)
    is_unreadable = kind is ExitClass.STORAGE and os.strerror(errno.EIO) in words
    return Exit(kind, f"exit code {end.code}{words}", is_unreadable or kind is ExitClass.BAD_DATA)
