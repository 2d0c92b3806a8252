"""How a launch ended: one class out of the exit code, the signal and what was asked of it."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from enum import StrEnum

from stoker.kit.workers.exit import signal_name


class ExitClass(StrEnum):
    """The classes by which launches are counted, told and treated."""

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


@dataclass(frozen=True)
class Ending:
    """What was seen of a launch's end.

    `code` and `signum` are the trainer's (both None when its guard was lost before it told them),
    `stop_asked` says that this supervisor sent the stop, `hung` that it did so because nothing moved.
    """

    code: int | None
    signum: int | None
    stop_asked: bool
    hung: bool
    last_words: str | None = None


@dataclass(frozen=True)
class Exit:
    """A classified end; `detail` is half a sentence for the log.

    `doubts_data`: what the trainer read could not be read; like bad data it is proven before the next launch.
    """

    kind: ExitClass
    detail: str
    doubts_data: bool = False


_BY_CODE = {
    0: ExitClass.FINISHED,
    65: ExitClass.BAD_DATA,
    74: ExitClass.STORAGE,
    75: ExitClass.TRY_AGAIN,
    78: ExitClass.WRONG_CONFIG,
}


def classify(ending: Ending) -> Exit:
    """The class of an end; code 0 without a stop asked is `finished`, which its checkpoint has to confirm."""
    told = f": {ending.last_words}" if ending.last_words else ""
    if ending.hung:
        return Exit(ExitClass.HUNG, "nothing moved in it any more, so it was stopped")
    if ending.signum == signal.SIGBUS:
        return Exit(ExitClass.BAD_DATA, "killed by SIGBUS: a mapped file is not all there", doubts_data=True)
    if ending.signum is not None:
        return Exit(ExitClass.KILLED, f"killed by {signal_name(ending.signum)}{told}")
    if ending.code is None:
        return Exit(ExitClass.GUARD_LOST, "its guard ended before it could say how the trainer did")
    if ending.code == 0 and ending.stop_asked:
        return Exit(ExitClass.STOPPED, "saved and stopped as asked")
    kind = _BY_CODE.get(ending.code, ExitClass.CRASHED)
    unreadable = kind is ExitClass.STORAGE and os.strerror(errno.EIO) in told
    return Exit(kind, f"exit code {ending.code}{told}", doubts_data=unreadable)
